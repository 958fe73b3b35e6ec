"""Configs of runs that take seconds, where they begin and what they leave."""

import contextlib
from collections.abc import Callable
from typing import Any

import ml_collections
import numpy as np
import pytest
import safetensors.numpy

from dpn import metrics
from dpn.trainers import build, log, restore, update
from dpn.weights import checkpoint

PP = "resize(20)|central_crop(16)|value_range(-1, 1)"
LABELS = '|onehot(10, key="label", key_result="labels")|keep("image", "labels")'
DIGITS = "arrays:digits"
FSDP = [(".*", "fsdp(axis='data', min_size_to_shard_mb=0)")]
SMALL = {"width": 16, "depth": 1, "mlp_dim": 32, "num_heads": 2}
# Adam would turn rounding errors of vanishing gradients into whole steps.
SGD = {"optax_name": "trace", "optax": {"decay": 0.9}}


def tiny_config(**changes: Any) -> ml_collections.ConfigDict:
  """Returns a config of six steps on digits, with everything random in it.

  `changes` have dotted names, {"model.width": 32}; new keys may be wrong.
  """
  config = ml_collections.ConfigDict(
    {
      **{"seed": 0, "num_classes": 10, "loss": "softmax_xent"},
      **{"total_steps": 6, "log_training_steps": 2, "ckpt_steps": 2},
      "log_grad_depth": True,
      "input": {
        "data": {"name": DIGITS, "split": "train[:40]"},
        "batch_size": 8,
        "pp": PP.replace("central", "random") + LABELS,
      },
      "mixup": {"p": 0.2},
      "model": {
        **SMALL,
        **{"patch_size": (8, 8), "pool_type": "tok"},
        **{"stem_ln": "dpn", "dropout": 0.1},
      },
      **{"optax_name": "scale_by_adam", "grad_clip_norm": 1.0},
      **{"lr": 0.002, "wd": 0.0002},
      "schedule": {"warmup_steps": 1, "decay_type": "cosine"},
      "evals": {
        "test": {
          "type": "classification",
          "data": {"name": DIGITS, "split": "test[:20]"},
          "pp_fn": PP + LABELS,
          "loss_name": "softmax_xent",
          "log_steps": 3,
        },
        "fewshot": {
          "type": "fewshot_lsr",
          "datasets": {"digits": (DIGITS, "train[:60]", "test[:20]")},
          "pp_train": f'{PP}|keep("image", "label")',
          "pp_eval": f'{PP}|keep("image", "label")',
          "shots": (1, 2),
          "log_steps": 6,
        },
      },
    }
  )
  for name, value in changes.items():
    *parents, key = name.split(".")
    section = config
    for parent in parents:
      section = section[parent]
    with section.unlocked(), section.ignore_type():
      section[key] = value
  return config


def rows(workdir) -> list[dict[str, float]]:
  """Returns a run's metrics."""
  return metrics.read(f"{workdir}/metrics.jsonl")


def params(workdir) -> dict[str, np.ndarray]:
  """Returns a finished run's parameters by name."""
  return safetensors.numpy.load_file(f"{workdir}/params.safetensors")


def assert_close(workdir, other, *, rel, atol, rtol=1e-7):
  """Compares metrics, by `rel` and `atol`, and parameters of finished runs."""
  for row, want in zip(rows(workdir), rows(other), strict=True):
    assert row == pytest.approx(want, rel=rel, abs=atol)
  found, expected = params(workdir), params(other)
  assert found.keys() == expected.keys()
  for name, want in expected.items():
    np.testing.assert_allclose(found[name], want, rtol=rtol, atol=atol)


def start(run: build.Run, folder) -> tuple[update.TrainState, dict, str]:
  """Returns `restore.initial_state` of a run with checkpoints in a folder."""
  with contextlib.closing(checkpoint.Checkpointer(str(folder))) as checkpoints:
    return restore.initial_state(run, checkpoints)


@contextlib.contextmanager
def at_step(step: int, act: Callable[[], Any]):
  """Calls `act` in every run as a step begins."""
  tick = log.Progress.tick

  def tick_and_act(progress, at):
    tick(progress, at)
    if at == step:
      act()

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(log.Progress, "tick", tick_and_act)
    yield


@contextlib.contextmanager
def killed_at(step: int):
  """Kills a run, by an exception, as a step begins."""

  def kill():
    raise RuntimeError("killed")

  with at_step(step, kill), pytest.raises(RuntimeError, match="killed"):
    yield


def sharded_config() -> ml_collections.ConfigDict:
  """Returns a tiny config, fully sharded, with a row for every step."""
  return tiny_config(sharding_strategy=FSDP, log_training_steps=1, **SGD)


def contrastive_config() -> ml_collections.ConfigDict:
  """Returns a tiny, sharded config of two towers on glyphs and their names."""
  config = sharded_config()
  del config.num_classes, config.mixup
  new_fonts = {"name": "arrays:glyphs", "split": "new_fonts[:40]"}
  # Names that were cut off to the same ids would tie in retrieval.
  to_ids = 'tokenize(48, eos="yes")'
  config.task = "contrastive"
  config.loss = "sigmoid"
  config.update(loss_chunks=2, grad_accum=2, lr=0.02, log_grad_depth=False)
  config.input.data = new_fonts
  config.input.pp = (
    f'random_crop(24)|value_range(-1, 1)|{to_ids}|keep("image", "text")'
  )
  config.model = {
    "image": {**SMALL, "patch_size": (8, 8), "stem_ln": "dpn"},
    "text": {**SMALL, "vocab_size": 260, "pool_type": "map"},
    "out_dim": (None, 16),
    "temperature_init": 10.0,
    "bias_init": -3.0,
  }
  pixels = "central_crop(24)|value_range(-1, 1)"
  config.evals = {
    "zeroshot": {
      "datasets": {"new_names": ("arrays:glyphs", "new_names[:50]")},
      **{"pp_img": pixels, "pp_txt": to_ids, "log_steps": 3, "batch_size": 32},
    },
    "retrieval": {
      "data": new_fonts,
      **{"pp_img": pixels, "pp_txt": to_ids, "log_steps": 3},
    },
  }
  return config
