"""A task of one's own, with a model of its own, goes through every tool."""

import json

import jax
import ml_collections
import numpy as np
import pytest
import safetensors

from dpn import metrics, tasks
from dpn.scripts import compile as compile_lib
from dpn.scripts import evaluate, report, tables
from dpn.scripts.compilation import programs
from dpn.trainers import conftest, loop

# Four numbers of a signal; nothing in it is like a ViT.
TASK = """
import dataclasses
import flax.linen as nn
import jax.numpy as jnp

from dpn.tasks import base


class Net(nn.Module):
  width: int

  @nn.compact
  def __call__(self, signal):
    x = signal.reshape(len(signal), -1)
    return nn.Dense(4, name="box")(nn.relu(nn.Dense(self.width, name="in")(x)))


@dataclasses.dataclass(frozen=True)
class Regression(base.Task):
  net: Net

  config_keys = ("net_width",)

  @classmethod
  def from_config(cls, config):
    return cls(Net(config["net_width"]))

  def init(self, rng, batch):
    return self.net.init(rng, batch["signal"])

  def measure(self, variables, batch, *, rng=None):
    error = self.net.apply(variables, batch["signal"]) - batch["box"]
    distance = jnp.abs(error).mean(-1)
    return {"loss": (error**2).sum(-1), "distance": distance}, {}

  def model_options(self):
    return {"net_width": self.net.width}

  def grad_norms(self, grads):
    return {name: jnp.linalg.norm(g["kernel"]) for name, g in grads.items()}
"""


@pytest.fixture(name="config")
def _config(tmp_path, monkeypatch):
  """Returns a run of six steps; the task's module is outside the checkout."""
  (tmp_path / "mypkg_tasks.py").write_text(TASK)
  monkeypatch.syspath_prepend(tmp_path)
  rng = np.random.default_rng(0)
  arrays = {}
  for split in ("train", "test"):
    arrays[f"{split}/signal"] = rng.normal(size=(24, 4, 4, 1))
    arrays[f"{split}/box"] = arrays[f"{split}/signal"].reshape(24, -1)[:, :4]
  path = tmp_path / "boxes.npz"
  np.savez(path, **{k: np.float32(v) for k, v in arrays.items()})
  data = {"name": f"arrays:{path}", "split": "test"}
  return ml_collections.ConfigDict({
    "task": "mypkg_tasks:Regression",
    "net_width": 8,
    "total_steps": 6,
    "log_training_steps": 2,
    "ckpt_steps": 2,
    "log_grad_depth": True,
    "input": {"data": {**data, "split": "train"}, "batch_size": 8, "pp": ""},
    "optax_name": "scale_by_adam",
    "lr": 0.01,
    "schedule": {"decay_type": "cosine"},
    "evals": {
      "val": {"type": "mean", "data": data, "pp_fn": "", "log_steps": 3}
    },
  })  # fmt: skip


def test_train_resume_evaluate_export_report(
  config, tmp_path, monkeypatch, capsys
):
  whole, killed = tmp_path / "runs" / "whole", tmp_path / "runs" / "killed"
  loop.train(config, str(whole))

  with conftest.killed_at(5):
    loop.train(config, str(killed))
  loop.train(config, str(killed))
  assert "from step 4: this run's checkpoint" in capsys.readouterr().out
  for name in ("metrics.jsonl", "params.safetensors"):
    assert (whole / name).read_bytes() == (killed / name).read_bytes(), name

  last = metrics.read(str(whole / "metrics.jsonl"))[-1]
  assert {"loss", "distance", "grad_norm/in", "grad_norm/box"} <= last.keys()
  with safetensors.safe_open(whole / "params.safetensors", "numpy") as file:
    params = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    said = json.loads(file.metadata()["model"])
  assert said == {"net_width": 8}
  arrays = np.load(tmp_path / "boxes.npz")
  x = arrays["test/signal"].reshape(24, -1)
  hidden = np.maximum(x @ params["in/kernel"] + params["in/bias"], 0)
  error = hidden @ params["box/kernel"] + params["box/bias"]
  error -= arrays["test/box"]
  assert last["val/loss"] == pytest.approx((error**2).sum(-1).mean(), rel=1e-5)

  for path in (whole, whole / "checkpoints"):
    row = evaluate.evaluate(config, str(path))
    assert row == {"step": 6, **{k: v for k, v in last.items() if "val/" in k}}
  step = compile_lib.build_step(config, jax.devices()[:1])
  found = dict(programs.lower(config, step, ["val"]))
  assert "dot_general" in found["val"].as_text()
  page = tmp_path / "report.html"
  monkeypatch.setattr(
    "sys.argv", ["report", str(tmp_path / "runs"), "-o", str(page)]
  )
  report.main()
  assert "killed" in page.read_text()
  monkeypatch.setattr("sys.argv", ["tables", str(tmp_path / "runs")])
  tables.main()


def test_a_task_that_is_none_is_refused():
  with pytest.raises(ValueError, match="must be a class that derives from"):
    tasks.find({"task": "collections:OrderedDict"})
