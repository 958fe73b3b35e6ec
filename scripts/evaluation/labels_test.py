"""Names of classes and losses, as runs and libraries have them."""

import json

import numpy as np
import pytest

from dpn.scripts.evaluation import labels
from dpn.weights import export

ABC = ["a", "b", "c"]
SOFTMAX, SIGMOID = "softmax_xent", "sigmoid_xent"
RUN = {"input": {}}
MULTI = {"problem_type": "multi_label_classification"}


def _read(tmp_path, config, **arrays):
  np.savez(tmp_path / "vit.npz", x=np.zeros(1), **arrays)
  (tmp_path / "config.json").write_text(json.dumps(config))
  return labels.read(str(tmp_path / "vit.npz"), 3)


@pytest.mark.parametrize(
  ("config", "names", "loss"),
  [
    ({}, None, None),
    (RUN, None, SIGMOID),  # the trainer's default
    (RUN | {"loss": SOFTMAX, "class_names": ABC}, ABC, SOFTMAX),
    (RUN | {"task": "segmentation"}, None, None),
    # The order in which JSON has them does not matter.
    ({"id2label": {"2": "c", "0": "a", "1": "b"}} | MULTI, ABC, SIGMOID),
    ({"label_names": ABC}, ABC, None),
    # Of another head: classes are numbered.
    ({"id2label": {"0": "a", "1": "b"}}, None, None),
    ({"label_names": [*"abcd"], "task": "x"}, None, None),
    ({"id2label": 5}, None, None),
  ],
)
def test_of_runs_and_libraries(tmp_path, config, names, loss):
  assert _read(tmp_path, config) == (names, loss)


def test_what_is_written(tmp_path):
  plain = export.Exported({}, {"layout": "timm"}, {"config.json": {"x": 1}}, [])
  known = labels.Labels(ABC, SIGMOID)
  timm, hf = (labels.added(plain, known, to) for to in ("timm", "hf"))
  assert timm.config["config.json"] == {"x": 1, "label_names": ABC}
  ids = {"id2label": dict(zip("012", ABC, strict=True))} | MULTI
  by_name = dict(zip(ABC, range(3), strict=True))
  assert hf.config["config.json"] == {"x": 1, "label2id": by_name, **ids}
  # What the metadata say wins over a config.json beside the file.
  said = np.array(json.dumps(timm.metadata))
  assert _read(tmp_path, {"id2label": {"0": "z"}}, metadata=said) == known
  assert labels.added(plain, labels.Labels(), "hf") == plain


def test_names_of_other_classes(tmp_path):
  with pytest.raises(ValueError, match=r"2 class_names, and the model 3 class"):
    _read(tmp_path, RUN | {"class_names": ABC[:2]})
  said = np.array(
    json.dumps({"labels": json.dumps({"class_names": [*"abcd"]})})
  )
  with pytest.raises(ValueError, match=r"metadata of .* has 4 class_names"):
    _read(tmp_path, {}, metadata=said)
