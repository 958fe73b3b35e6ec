"""Nothing that a file names is imported unless its user trusts it."""

import json
import sys

import jax
import ml_collections
import numpy as np
import pytest

from dpn import registry
from dpn.configs import images
from dpn.input_pipeline import conftest as data_conftest
from dpn.input_pipeline import sources
from dpn.models import vit
from dpn.scripts import convert, evaluate, predict, select_best
from dpn.scripts.evaluation import checkpoints
from dpn.trainers import conftest
from dpn.weights import files, metadata

OPTIONS = ("norm", "stem", "stem_ln", "block_ln", "posemb", "pool_type")
CONFIG = {
  **{f"model.{option}": "planted:X" for option in OPTIONS},
  "model.norm_kw": {"cls": "planted:X"},
  "model_name": "planted:X",
  "task": "planted:X",
  "optax_name": "planted:X",
  "schedule": [[".*", {"decay_type": "planted:X"}]],
  "pp_modules": ["ops_text", "planted"],
  "input.data": {"name": "planted:X", "split": "train"},
  "evals.test.type": "planted.below",
  "evals.test.data.name": "planted:X",
  "evals": {"planted:X": {"log_steps": 1}},
  "evals.fewshot.datasets": {"a": ["planted:X", "train", "test"]},
}


@pytest.fixture
def trace(tmp_path, monkeypatch):
  """Returns a file that appears when the module `planted` is imported."""
  file = tmp_path / "trace"
  for name in ("planted", "below"):
    touch = f"pathlib.Path({str(file)!r}).touch()"
    code = f"import pathlib\n{touch}\nX = OPS = {{}}\n"
    (tmp_path / f"{name}.py").write_text(code)
  monkeypatch.syspath_prepend(str(tmp_path))
  monkeypatch.setattr(registry, "_trusted", {"dpn"})
  yield file
  assert not file.exists(), "it was imported"


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
  """Returns the folder of what looks like a finished run."""
  folder = tmp_path_factory.mktemp("run")
  config = conftest.tiny_config().to_dict()
  model = vit.Model(10, **config["model"])
  image = np.zeros((1, 16, 16, 1), np.float32)
  params = model.init(jax.random.key(0), image)["params"]
  said = metadata.metadata(vit.options(model), None, pp=conftest.PP)
  file = str(folder / "params.safetensors")
  files.save_params(file, params, metadata=said)
  (folder / "config.json").write_text(json.dumps(config))
  return folder, params, vit.options(model)


def _refuse(read, module="planted"):
  with pytest.raises((ValueError, SystemExit), match=f"--trust {module}"):
    read()


@pytest.mark.parametrize("field", CONFIG)
def test_config_of_a_run(field, whole, trace, tmp_path):
  config = ml_collections.ConfigDict(
    json.loads((whole[0] / "config.json").read_text())
  )
  with config.ignore_type():
    config.update_from_flattened_dict({field: CONFIG[field]})
  (tmp_path / "config.json").write_text(config.to_json())
  link = tmp_path / "params.safetensors"
  link.symlink_to(whole[0] / "params.safetensors")
  run = str(tmp_path)
  _refuse(lambda: predict.main([run, "image.png"]))
  _refuse(lambda: evaluate.evaluate(checkpoints.config_of(run), run))
  _refuse(lambda: checkpoints.of_run(run, "classification"))


@pytest.mark.parametrize("option", OPTIONS)
def test_metadata_of_parameters(option, whole, trace, tmp_path):
  _, params, options = whole
  said = metadata.metadata(options | {option: "planted:X"}, None)
  file = str(tmp_path / "x.safetensors")
  files.save_params(file, params, metadata=said)
  _refuse(lambda: vit.from_pretrained(file))
  _refuse(lambda: convert.main([file, str(tmp_path / "y"), "--to", "timm"]))
  _refuse(lambda: predict.main([file, "image.png"]))


def test_what_is_trusted(whole, trace, tmp_path, monkeypatch):
  _, params, options = whole
  said = metadata.metadata(options | {"norm": "planted:X"}, None)
  file = str(tmp_path / "x.safetensors")
  files.save_params(file, params, metadata=said)
  for read in (
    lambda: vit.from_pretrained(file, norm="planted:X"),
    lambda: predict.main([file, "image.png", "--trust", "planted"]),
  ):
    with monkeypatch.context() as m:
      m.setattr(registry, "_trusted", {"dpn"})
      m.delitem(sys.modules, "planted", raising=False)
      with pytest.raises((ValueError, SystemExit), match="Error: "):
        read()  # it is no norm
      trace.unlink()


def test_config_of_a_checkpoint_without_parameters(whole, trace, tmp_path):
  config = json.loads((whole[0] / "config.json").read_text())
  config["model"]["norm"] = "planted:X"
  config |= {"model_name": "vit"}
  (tmp_path / "config.json").write_text(json.dumps(config))
  (tmp_path / "checkpoints" / "2").mkdir(parents=True)
  with pytest.raises((ValueError, OSError)):
    vit.from_pretrained(str(tmp_path))
  photos = data_conftest.class_folders(str(tmp_path / "photos"))
  arg = f"data={photos},init={tmp_path}"
  _refuse(lambda: images.get_config(arg))


def test_data(trace, tmp_path):
  source = {"name": "planted:X", "split": "train"}
  (tmp_path / "source.json").write_text(json.dumps(source))
  np.save(tmp_path / "train.npy", np.zeros((1, 1)))
  with pytest.raises(ValueError, match="a class of your own"):
    sources.make({"name": f"embedded:{tmp_path}", "split": "train"})
  itself = {"name": f"embedded:{tmp_path}", "split": "train"}
  (tmp_path / "source.json").write_text(json.dumps(itself))
  with pytest.raises(ValueError, match=r"source.json is damaged.*Recursion"):
    sources.make(itself)
  data_conftest.write_tfds(tmp_path, "x", {"y": [{"a": 1}]}, {"a": 7})
  path = tmp_path / "x" / "1.0.0" / "features.json"
  told = path.read_text().replace(
    "tensorflow_datasets.core.features.class_label_feature", "planted"
  )
  assert "planted" in told
  path.write_text(told)
  data = {"name": "x", "split": "y", "data_dir": str(tmp_path)}
  with pytest.raises(
    ValueError, match=r"names the class 'planted\.ClassLabel'"
  ):
    sources.make(data)


def test_sweep(trace, tmp_path):
  arm = {"name": "a", "arg": "", "seed": 0, "overrides": {}, "workdir": "a"}
  index = {"config": str(tmp_path / "planted.py"), "arms": [arm]}
  path = tmp_path / "sweep.json"
  choices = {"cell": {"runs": ["a"]}}
  path.write_text(json.dumps(index))
  _refuse(lambda: select_best.test_commands(str(tmp_path), choices), "")
  index["config"] = "configs/digits.py"
  arm["overrides"] = {"model.norm": "planted:X"}
  path.write_text(json.dumps(index))
  _refuse(lambda: select_best.test_commands(str(tmp_path), choices))
  arm["overrides"] = {"model": "{'norm': 'planted:X'}"}
  path.write_text(json.dumps(index))
  _refuse(lambda: select_best.test_commands(str(tmp_path), choices))
  index["config"], arm["overrides"] = "configs/vtab.py", {}
  arm["arg"] = "task=DTD,variant=B/32,stem_ln=planted:X,init=none.npz"
  path.write_text(json.dumps(index))
  _refuse(lambda: select_best.test_commands(str(tmp_path), choices))
  assert select_best.test_commands(str(tmp_path), {}) == {}  # none is run
  arm["workdir"] = "../a"
  path.write_text(json.dumps(index))
  with pytest.raises(ValueError, match="leads out of"):
    select_best.test_commands(str(tmp_path), choices)
