"""Evaluating a checkpoint gives what the run itself measured."""

import json
import pathlib
import shutil
import subprocess
import sys

import numpy as np
import pytest
import safetensors.numpy

from dpn import metrics
from dpn.input_pipeline import pp
from dpn.scripts import convert, evaluate
from dpn.scripts.evaluation import checkpoints
from dpn.trainers import conftest, loop

ROOT = pathlib.Path(__file__).parents[1]
OTHER_PIXELS = conftest.PP.replace("-1, 1", "0, 1") + conftest.LABELS


@pytest.fixture(scope="module")
def run(tmp_path_factory):
  """Returns a finished run's config, folder and last row."""
  config = conftest.tiny_config(
    total_steps=4, ckpt_steps=2, **{"evals.test.log_steps": 2}
  )
  folder = tmp_path_factory.mktemp("run")
  loop.train(config, str(folder))
  return config, folder, metrics.read(str(folder / "metrics.jsonl"))


def _evaluated(row, *evals):
  return {k: v for k, v in row.items() if k.partition("/")[0] in evals}


def _close_to(row):
  return pytest.approx(row, rel=1e-6, abs=0)


def test_a_run_and_its_checkpoints(run):
  config, folder, rows = run
  final = {"step": 4} | _evaluated(rows[-1], "test", "fewshot")
  assert len(final) > 4
  own = checkpoints.config_of(str(folder))
  assert evaluate.evaluate(own, str(folder)) == _close_to(final)
  test = _evaluated(final, "step", "test")
  there = folder / "checkpoints"
  assert evaluate.evaluate(config, str(there), ["test"]) == _close_to(test)
  [early] = [row for row in rows if row["step"] == 2]
  want = {"step": 2} | _evaluated(early, "test")
  own = checkpoints.config_of(str(there / "2"))
  got = evaluate.evaluate(own, str(there / "2"), ["test"])
  assert got == _close_to(want)
  assert final["test/loss"] != want["test/loss"]


def test_a_run_of_another_machine(run, tmp_path):
  shutil.copytree(run[1], tmp_path / "run")
  file = tmp_path / "run/config.json"
  trained = {"mesh": [["data", 8]], "sharding_strategy": [[".*", "fsdp"]]}
  file.write_text(json.dumps(json.loads(file.read_text()) | trained))
  got = checkpoints.config_of(str(tmp_path / "run"))
  assert not trained.keys() & {*got}  # there are no 8 devices here
  trained["mesh"] = [["data", -1]]
  file.write_text(json.dumps(json.loads(file.read_text()) | trained))
  assert trained.keys() <= {*checkpoints.config_of(str(tmp_path / "run"))}


def test_another_loader_is_warned_about(run, tmp_path, caplog):
  config, folder, _ = run
  for path in (folder, folder / "checkpoints", tmp_path):
    if path == tmp_path:  # the parameters alone
      path = tmp_path / "params.safetensors"
      convert.convert(str(folder), str(path), "ours")
    changed = config.copy_and_resolve_references()
    checkpoints.prepare(changed, str(path), ["test"])
    assert "loader" not in caplog.text
    changed.evals.test.pp_fn = "resize(8, 'area')|" + config.evals.test.pp_fn
    checkpoints.prepare(changed, str(path), ["test"])
    assert f"The loader of {path} was another one" in caplog.text
    caplog.clear()


def test_ops_of_ones_own(run, tmp_path, monkeypatch):
  config, folder, rows = run
  (tmp_path / "same_ops.py").write_text(
    "same = lambda: lambda example, rng: example\nOPS = {'same': same}\n"
  )
  monkeypatch.syspath_prepend(tmp_path)
  monkeypatch.setattr(pp, "OPS", dict(pp.OPS))
  monkeypatch.setattr(pp, "_added", [])
  config = config.copy_and_resolve_references()
  config.pp_modules = ("same_ops",)
  config.evals.test.pp_fn = f"same|{config.evals.test.pp_fn}"
  got = evaluate.evaluate(config, str(folder), ["test"])
  assert got["test/loss"] == pytest.approx(rows[-1]["test/loss"], rel=1e-6)


def test_parameters_from_elsewhere(run, tmp_path):
  """Another format, other classes: probes do not use the head."""
  config, folder, rows = run
  params = safetensors.numpy.load_file(folder / "params.safetensors")
  params["head/kernel"] = np.zeros((16, 7), np.float32)
  params["head/bias"] = np.zeros(7, np.float32)
  np.savez(tmp_path / "other.npz", **params)
  got = evaluate.evaluate(config, str(tmp_path / "other.npz"), ["fewshot"])
  assert got.pop("step") is None
  assert got == _close_to(_evaluated(rows[-1], "fewshot"))
  with pytest.raises(ValueError, match=r"head/kernel +\(16, 10\) +\(16, 7\)"):
    evaluate.evaluate(config, str(tmp_path / "other.npz"), ["test"])


@pytest.mark.parametrize(
  ("path", "evals", "changes", "message"),
  [
    ("", ["tets"], {}, r"in --evals: 'tets'. Did you mean 'test'\? Known: few"),
    ("", ["test"], {"model.width": 8}, r"cls +\(1, 1, 8\) +\(1, 1, 16\)"),
    ("", ["test"], {"model.width": 8}, "Give the config of the model in the"),
    ("", ["test"], {"model.gelu": "exact"}, "gelu: tanh in the file, exact in"),
    ("", ["test"], {"evals.test.pp_fn": OTHER_PIXELS}, "pixels: .*in the file"),
    ("checkpoints/3", ["test"], {}, r"no checkpoint of step 3 .*\[2, 4\]"),
    ("", [], {"evals": {}}, "has no evaluators"),
    ("", ["test"], {"modle": 1}, "Unknown key in config: 'modle'"),
  ],
)
def test_errors(run, path, evals, changes, message):
  _, folder, _ = run
  config = conftest.tiny_config(total_steps=4, **changes)
  path = str(folder / path) if path else str(folder)
  with pytest.raises((ValueError, OSError), match=message):
    evaluate.evaluate(config, path, evals)


def test_running_statistics_come_with_the_parameters(run, tmp_path):
  config = conftest.tiny_config(
    total_steps=2, **{"model.norm": "batchnorm", "evals.test.log_steps": 2}
  )
  loop.train(config, str(tmp_path))
  rows = metrics.read(str(tmp_path / "metrics.jsonl"))
  path = str(tmp_path / "params.safetensors")
  got = evaluate.evaluate(config, path, ["test"])
  assert got.pop("step") == 2
  assert got == _close_to(_evaluated(rows[-1], "test"))
  _, other, _ = run
  with pytest.raises(
    ValueError, match="norm: layernorm in the file, batchnorm"
  ):
    evaluate.evaluate(config, str(other), ["test"])


def test_table():
  row = {"step": None, "a/x": 0.25, "a/x-seed-0": 0.5, "long/name": 3.0}
  assert evaluate.table(row) == (
    "step       unknown\na/x        0.2500\nlong/name  3.0000"
  )


def test_a_run_from_a_file_is_evaluated_as_what_it_is(run, tmp_path):
  _, folder, _ = run
  shutil.copytree(folder, tmp_path / "run")
  path = tmp_path / "run" / "config.json"
  began = {"model_init": "gone.npz", "model_load": {"arch": "vit_tiny"}}
  path.write_text(json.dumps(json.loads(path.read_text()) | began))
  config = checkpoints.config_of(str(path.parent))
  assert not {*began} & {*config}
  path.write_text('{"architecture": "vit_tiny_patch16_224"}')  # as timm's
  with pytest.raises(ValueError, match=r"is not a run's, .* Give --data"):
    checkpoints.config_of(str(path.parent))


@pytest.mark.slow
def test_the_command(run, tmp_path):
  _, folder, rows = run
  command = [sys.executable, "-m", "dpn.scripts.evaluate"]
  out = str(tmp_path / "row.json")
  done = subprocess.run(
    [*command, folder, "--evals", "test", "--out", out],
    cwd=ROOT,
    capture_output=True,
    text=True,
  )
  assert done.returncode == 0, done.stderr
  row = json.loads((tmp_path / "row.json").read_text())
  assert row["step"] == 4
  assert row["test/loss"] == pytest.approx(rows[-1]["test/loss"], rel=1e-6)
  done = subprocess.run(
    [*command, folder, "--shots", "1"], cwd=ROOT, capture_output=True, text=True
  )
  assert "Error: --shots needs --data." in done.stderr
