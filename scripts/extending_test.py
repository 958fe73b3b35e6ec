"""The parts in docs/extending.md work in a folder outside the checkout."""

import json
import os
import pathlib
import re
import subprocess
import sys

import jax
import numpy as np
import pytest
import safetensors
from PIL import Image

from dpn import tasks
from dpn.input_pipeline import pp
from dpn.scripts import compile as compile_lib
from dpn.scripts import evaluate, report, tables
from dpn.scripts.compilation import programs
from dpn.trainers import cli, conftest, loop

ROOT = pathlib.Path(__file__).parents[1]
TEXT = (ROOT / "docs/extending.md").read_text()
BLOCKS = re.findall(r"```python\n# (mypkg/\w+\.py)\n(.*?)```", TEXT, re.S)
COMMON = """
import ml_collections

TAIL = ("value_range(-1, 1)|onehot(8, key='label', key_result='labels')"
        "|keep('image', 'labels')")


def get_config():
  data = {"name": "mypkg.data:Squares", "split": "train"}
  test = {"name": "mypkg.data:Squares", "split": "test"}
  config = ml_collections.ConfigDict()
  config.pp_modules = ["mypkg.ops"]
  config.input = {"data": data, "batch_size": 8}
  config.input.pp = "random_invert(0.2)|" + TAIL
  config.total_steps = 4
  config.log_training_steps = 2
  config.optax_name = "mypkg.optimizers:scale_by_lion"
  config.optax = {"b2": 0.98}
  config.lr = 0.01
  config.schedule = {"decay_type": "mypkg.schedules:sqrt_decay", "end": 0.001}
"""
CLASSIFY = """
  config.num_classes = 8
  config.loss = "mypkg.losses:focal"
  config.model = {
    "width": 16, "depth": 2, "num_heads": 2, "patch_size": (8, 8),
    "norm": "mypkg.norms:Derf", "norm_kw": {"alpha": 0.7},
    "stem": "mypkg.stems:overlapping", "stem_kw": {"stride": 8},
    "stem_ln": "mypkg.stems:RMS_THEN_LN",
    "block_ln": "mypkg.blocks:LayerScale", "block_ln_kw": {"init_value": 0.1},
    "posemb": "mypkg.positions:rows", "scan": True,
  }
  config.evals = {"per_class": {
    "type": "mypkg.evals:PerClass", "data": test, "pp_fn": TAIL,
    "log_steps": 4}}
  return config
"""
REGRESS = """
  config.task = "mypkg.tasks:Brightness"
  config.net_width = 4
  config.ckpt_steps = 2
  config.log_grad_depth = True
  pp = "value_range(-1, 1)|copy('image', 'signal')|keep('signal')"
  config.input.pp = pp
  config.evals = {"val": {
    "type": "mean", "data": test, "pp_fn": pp, "log_steps": 4}}
  return config
"""


def write(folder, config):
  """Writes the package, and the config beside it."""
  (folder / "mypkg").mkdir()
  for path, text in BLOCKS:
    (folder / path).write_text(text)
  (folder / "config.py").write_text(config)


def results(run):
  """Returns the last metrics of a run, and its parameters."""
  metrics = json.loads((run / "done.json").read_text())["metrics"]
  with safetensors.safe_open(run / "params.safetensors", "numpy") as file:
    params = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
  return metrics, params


def test_every_example_is_short():
  assert len(BLOCKS) == 11
  for path, text in BLOCKS:
    assert len(text.strip().split("\n")) <= 25, path


def test_config(tmp_path):
  [config] = re.findall(r"```python\n# config.py\n(.*?)```", TEXT, re.S)
  rows = ["path,label,split"]
  for i, label in enumerate(("daisy", "rose", "tulip") * 4):
    Image.new("RGB", (70, 80), (20 * i, 0, 0)).save(tmp_path / f"{i}.png")
    rows.append(f"{i}.png,{label},{'val' if i < 3 else 'train'}")
  (tmp_path / "flowers.csv").write_text("\n".join(rows))
  for there, here in (
    ("/data/flowers.csv", str(tmp_path / "flowers.csv")),
    ("config.total_epochs = 50", "config.total_steps = 1"),
    ('"batch_size": 64', '"batch_size": 4'),
    ('"S/8"', '"mu/8"'),
  ):
    assert config.count(there) == 1
    config = config.replace(there, here)
  (tmp_path / "config.py").write_text(config)
  loaded = cli.load_config(str(tmp_path / "config.py"))
  loop.train(loaded, str(tmp_path / "run"))
  metrics, params = results(tmp_path / "run")
  # After one step of a head that starts at zero: three classes, a third each.
  assert metrics["val/loss"] == pytest.approx(np.log(3), rel=0.1)
  assert params["head/kernel"].shape == (32, 3)


def test_parts_of_a_model(tmp_path):
  write(tmp_path, COMMON + CLASSIFY)
  done = subprocess.run(
    [
      *(sys.executable, "-m", "dpn.trainers.train"),
      *("--config=config.py", "--workdir=run"),
    ],
    cwd=tmp_path,
    env=os.environ | {"PYTHONPATH": str(ROOT)},
    capture_output=True,
    text=True,
  )
  assert done.returncode == 0, done.stdout + done.stderr
  metrics, params = results(tmp_path / "run")
  classes = [f"per_class/class_{i}" for i in range(8)]
  # All images of a class are the same, so all or none of them are right.
  assert {0, 1} >= {metrics[name] for name in classes}
  block = "Transformer/encoderblock"
  assert params[f"{block}/LayerNorm_0/alpha"].shape == (2,)
  assert params[f"{block}/LayerNorm_0_post_gamma"].shape == (2, 1, 1, 16)
  assert params["stem/ln0/scale"].shape == (3,)
  assert params["embedding/kernel"].shape == (8, 8, 3, 16)
  assert "pos_embedding" not in params
  # The last step but one: warmup none, progress 3/4, peak 0.01.
  assert metrics["lr"] == pytest.approx(0.01 * (1 - 0.75**0.5))


def test_task_through_every_tool(tmp_path, monkeypatch, capsys):
  write(tmp_path, COMMON + REGRESS)
  path = tmp_path / "mypkg/tasks.py"  # no tool knows what a batch holds
  path.write_text(path.read_text().replace('"image"', '"signal"'))
  monkeypatch.syspath_prepend(tmp_path)
  monkeypatch.setattr(pp, "OPS", dict(pp.OPS))
  monkeypatch.setattr(pp, "_added", [])
  config = cli.load_config(str(tmp_path / "config.py"))
  runs = tmp_path / "runs"
  loop.train(config, str(runs / "whole"))
  with conftest.killed_at(3):
    loop.train(config, str(runs / "killed"))
  loop.train(config, str(runs / "killed"))
  assert "from step 2: this run's checkpoint" in capsys.readouterr().out
  for name in ("metrics.jsonl", "params.safetensors"):
    whole, killed = (runs / "whole" / name, runs / "killed" / name)
    assert whole.read_bytes() == killed.read_bytes(), name
  metrics, params = results(runs / "whole")
  assert {"grad_norm/layers_0", "grad_norm/layers_1"} <= metrics.keys()
  images = -np.ones((8, 16, 16, 3))  # in [-1, 1]; the test set has five of each
  for side, image in enumerate(images):
    image[: 2 * side, : 2 * side] = 1
  x = images.reshape(8, -1)
  hidden = x @ params["layers_0/kernel"] + params["layers_0/bias"]
  y = hidden @ params["layers_1/kernel"] + params["layers_1/bias"]
  want = np.square(y[:, 0] - x.mean(-1)).mean()
  assert metrics["val/loss"] == pytest.approx(want, rel=1e-5)
  for path in (runs / "whole", runs / "whole/checkpoints"):
    row = evaluate.evaluate(config, str(path))
    assert row == {"step": 4, "val/loss": metrics["val/loss"]}
  step = compile_lib.build_step(config, jax.devices()[:1])
  [(_, program)] = programs.lower(config, step, ["val"])
  assert "dot_general" in program.as_text()
  report.main([str(runs), "-o", str(tmp_path / "report.html")])
  assert "killed" in (tmp_path / "report.html").read_text()
  tables.main([str(runs)])


def test_a_task_that_is_none_is_refused():
  with pytest.raises(ValueError, match="must be a class that derives from"):
    tasks.find({"task": "collections:OrderedDict"})
