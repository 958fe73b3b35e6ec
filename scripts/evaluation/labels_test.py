"""Classes' names and losses, as ours and other libraries write them."""

import json

import numpy as np
import pytest

from dpn.scripts.evaluation import labels

ABC = ["a", "b", "c"]
SOFTMAX, SIGMOID = "softmax_xent", "sigmoid_xent"
MULTI = {"problem_type": "multi_label_classification"}


def _read(tmp_path, config):
  np.savez(tmp_path / "vit.npz", x=np.zeros(1))
  (tmp_path / "config.json").write_text(json.dumps(config))
  return labels.read(str(tmp_path / "vit.npz"), 3)


@pytest.mark.parametrize(
  ("config", "names", "loss"),
  [
    ({}, None, None),
    ({"input": {}}, None, SIGMOID),  # the trainer's default
    ({"input": {}, "loss": SOFTMAX, "class_names": ABC}, ABC, SOFTMAX),
    ({"input": {}, "task": "segmentation"}, None, None),
    # The order in which JSON has them does not matter.
    ({"id2label": {"2": "c", "0": "a", "1": "b"}} | MULTI, ABC, SIGMOID),
    ({"label_names": ABC}, ABC, None),
    ({"label_names": {"2": "c", "0": "a"}}, ["a", "1", "c"], None),
  ],
)
def test_of_runs_and_libraries(tmp_path, config, names, loss):
  assert _read(tmp_path, config) == (names, loss)


@pytest.mark.parametrize(
  ("to", "loss", "kept"),
  [
    ("ours", SIGMOID, SIGMOID),
    ("ours", SOFTMAX, SOFTMAX),
    ("hf", SIGMOID, SIGMOID),  # its other losses say nothing of outputs
    ("timm", SIGMOID, None),
  ],
)
def test_there_and_back(tmp_path, to, loss, kept):
  config = labels.for_library(labels.Labels(ABC, loss), to)
  assert _read(tmp_path, config) == (ABC, kept)
  assert labels.for_library(labels.Labels(), to) == {}


@pytest.mark.parametrize(
  ("key", "names"),
  [("class_names", ABC[:2]), ("id2label", {"3": "d"}), ("label_names", "abcd")],
)
def test_names_of_other_classes(tmp_path, key, names):
  names = names if isinstance(names, dict) else [*names]
  with pytest.raises(ValueError, match=rf"names in '{key}', and the model 3"):
    _read(tmp_path, {key: names})
