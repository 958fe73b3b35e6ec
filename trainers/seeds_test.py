"""Seeds trained together are what they are one by one."""

import functools
import itertools
import json
import os
import shutil
import types

import jax.numpy as jnp
import numpy as np
import pytest

from dpn import errors, metrics
from dpn.trainers import conftest, distributed, ends, loop, update
from dpn.trainers import seeds as seeds_lib

SEEDS = (3, 5)


def _config(**changes):
  few = {"log_training_steps": 1, "ckpt_steps": 3, "total_steps": 5, "lr": 0.05}
  config = conftest.tiny_config(**few, **conftest.SGD)
  del config.evals["fewshot"]
  with config.ignore_type():
    config.update_from_flattened_dict(changes)
  return config


def _together(config, folder, seeds=SEEDS, **kw):
  loop.train(config, f"{folder}/s{{seed}}", seeds, **kw)


_assert_close = functools.partial(
  conftest.assert_close, rel=1e-4, atol=1e-5, rtol=1e-5
)


@pytest.fixture(scope="module", name="alone")
def _alone(tmp_path_factory):
  """Returns a folder with a run of each seed."""
  folder = tmp_path_factory.mktemp("alone")
  for seed in SEEDS:
    loop.train(_config(seed=seed), str(folder / f"s{seed}"))
  return folder


@pytest.fixture(scope="module", name="unfinished")
def _unfinished(tmp_path_factory):
  """Returns a folder with both seeds trained together, but not yet done."""
  folder = tmp_path_factory.mktemp("together")
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(ends, "finish", lambda *args: None)
    _together(_config(ckpt_steps=2), folder)
  return folder


def _lose_one(folder):
  """As a kill between the saves of two seeds does."""
  shutil.rmtree(folder / f"s{SEEDS[1]}/checkpoints/5")


def _damage_one(folder):
  damaged = folder / f"s{SEEDS[1]}/checkpoints/5"
  (damaged / "_CHECKPOINT_METADATA").write_text("{")


def _finish_one_alone(folder):
  for seed in SEEDS:
    shutil.rmtree(folder / f"s{seed}/checkpoints/5")
  loop.train(_config(ckpt_steps=2, seed=SEEDS[0]), str(folder / f"s{SEEDS[0]}"))


@pytest.mark.parametrize("change", [_lose_one, _damage_one, _finish_one_alone])
def test_training_together_and_resuming(alone, unfinished, tmp_path, change):
  folder = shutil.copytree(unfinished, tmp_path / "runs")
  change(folder)
  _together(_config(ckpt_steps=2), folder)
  for seed in SEEDS:
    _assert_close(folder / f"s{seed}", alone / f"s{seed}")
    assert (folder / f"s{seed}/checkpoints/5").exists()
  losses = [conftest.rows(folder / f"s{seed}")[-1]["loss"] for seed in SEEDS]
  assert abs(losses[0] - losses[1]) > 1e-3
  _together(_config(ckpt_steps=2), folder)  # finds them done


def test_a_finished_seed_of_another_config(alone):
  with pytest.raises(ValueError, match=r"wd: .* there, 0\.5 now"):
    loop.train(_config(wd=0.5), str(alone / "s{seed}"), [SEEDS[0], 7])
  assert not (alone / "s7/checkpoints").exists()


@pytest.mark.slow
def test_extending_all_or_one(alone, tmp_path):
  by_one = shutil.copytree(alone, tmp_path / "alone")
  joint = shutil.copytree(alone, tmp_path / "together")
  _together(_config(total_steps=7), joint, allow_config_change=True)
  for seed in SEEDS:
    config, folder = _config(seed=seed, total_steps=7), by_one / f"s{seed}"
    loop.train(config, str(folder), allow_config_change=True)
    _assert_close(joint / f"s{seed}", folder)
  # Where the first has no steps left, the second's are its own.
  last = tmp_path / "last"
  shutil.copytree(by_one / f"s{SEEDS[0]}", last / f"s{SEEDS[0]}")
  shutil.copytree(alone / f"s{SEEDS[1]}", last / f"s{SEEDS[1]}")
  _together(_config(total_steps=7), last, allow_config_change=True)
  _assert_close(last / f"s{SEEDS[1]}", by_one / f"s{SEEDS[1]}")
  # One seed goes further; what it has done since is not thrown away.
  config, folder = _config(seed=SEEDS[0], total_steps=8), joint / f"s{SEEDS[0]}"
  loop.train(config, str(folder), allow_config_change=True)
  with pytest.raises(ValueError, match=r"s3': 8, .*s5': 7"):
    _together(_config(total_steps=9), joint, allow_config_change=True)
  assert (folder / "checkpoints/8").exists()


@pytest.mark.parametrize("begun", [True, False])
def test_a_seed_without_a_checkpoint(tmp_path, begun):
  """A kill between the first saves of two seeds; or one that joins late."""
  runs, dropped = [], []
  for seed, steps in zip(SEEDS, ([3], []), strict=True):
    workdir = tmp_path / f"s{seed}"
    workdir.mkdir()
    if begun or steps:
      (workdir / "environment.json").write_text("[]")
    run = seeds_lib.Seed({}, str(workdir))
    run.checkpoints = types.SimpleNamespace(
      steps=steps, latest=max(steps, default=None), drop_after=dropped.append
    )
    runs.append(run)
  if begun:
    seeds_lib.drop_later_checkpoints(runs, most=1)
    assert dropped == [0, 0]
    return
  message = r"different steps: .*s3': 3, .*s5': 0"
  with pytest.raises(ValueError, match=message):
    seeds_lib.drop_later_checkpoints(runs, most=1)
  assert not dropped


def test_examples_seen_in_batches_of_two_sizes(tmp_path, monkeypatch):
  count = lambda state, batch: (
    state.replace(step=state.step + 1),
    {"loss": jnp.float32(1)},
  )
  monkeypatch.setattr(update, "make", lambda *args, **kw: count)
  small = {"evals": {}, "log_grad_depth": False, "ckpt_steps": 1}
  _together(_config(total_steps=1, **small), tmp_path)
  larger = _config(total_steps=3, **small, **{"input.batch_size": 16})
  _together(larger, tmp_path, allow_config_change=True)
  for seed in SEEDS:
    folder = tmp_path / f"s{seed}"
    notes = (folder / "checkpoints/3/_CHECKPOINT_METADATA").read_text()
    position = json.loads(notes)["custom_metadata"]["position"]
    assert position["examples_seen"] == 8 + 2 * 16
    (first, *_) = metrics.read(str(folder / "timing.jsonl"))
    assert first["compile_secs"] > 0.01  # ahead of the first step


@pytest.mark.slow
def test_data_on_the_device(tmp_path):
  """The same bits as from the host; and with seeds together, up to rounding."""
  with pytest.raises(ValueError, match="on_device: every example is prepr"):
    loop.train(_config(**{"input.on_device": True}), str(tmp_path))
  changes = {"input.pp": conftest.PP + conftest.LABELS, "evals": {}}
  changes |= {"augment": {"pad": 2, "pad_value": -1.0, "flip_lr": True}}
  loop.train(_config(seed=3, **changes), str(tmp_path / "host"))
  changes["input.on_device"] = True
  loop.train(_config(seed=3, **changes), str(tmp_path / "device"))
  for read in (conftest.rows, conftest.params):
    np.testing.assert_equal(read(tmp_path / "device"), read(tmp_path / "host"))
  _together(_config(**changes), tmp_path)
  _assert_close(tmp_path / "s3", tmp_path / "host")


def test_a_seed_that_diverges(tmp_path, monkeypatch):
  deferred_row = loop.deferred_row

  def diverge(run, step, values, show=None):
    bad = run.config["seed"] == SEEDS[0] and step == 2
    values |= {"loss": np.nan} if bad else {}
    return deferred_row(run, step, values, show)

  monkeypatch.setattr(loop, "deferred_row", diverge)
  # Stopped at step 4 and started again, where the one has a checkpoint of
  # step 1, which the other does not keep.
  config = _config(evals={}, ckpt_steps=1)
  with monkeypatch.context() as stopping:
    calls = itertools.count(1)
    stop = lambda self: next(calls) == 4
    stopping.setattr(distributed.PreemptionHandler, "should_stop", stop)
    _together(config, tmp_path)
  with pytest.raises(errors.NonFiniteError, match=r"s3 had diverged and was"):
    _together(config, tmp_path)
  reason = tmp_path / f"s{SEEDS[0]}/diverged.txt"
  assert "loss = nan at step 2" in reason.read_text()
  assert not (tmp_path / f"s{SEEDS[0]}/done.json").exists()
  assert (tmp_path / f"s{SEEDS[1]}/done.json").exists()
  monkeypatch.undo()
  alone = _config(evals={}, ckpt_steps=1, seed=SEEDS[0])
  loop.train(alone, str(tmp_path / f"s{SEEDS[0]}"))
  assert not reason.exists()


def test_when_all_seeds_diverge_nothing_is_saved(tmp_path):
  config = _config(evals={}, lr=1e38, log_training_steps=5)
  with pytest.raises(errors.NonFiniteError, match="at step 3"):
    _together(config, tmp_path)
  for seed in SEEDS:
    assert not os.listdir(tmp_path / f"s{seed}/checkpoints")


@pytest.mark.parametrize(
  ("changes", "pattern", "message"),
  [
    ({"sharding_strategy": conftest.FSDP}, "{seed}", "config.sharding_strateg"),
    ({"wandb": {}}, "{seed}", "config.wandb"),
    ({"input.on_error": "skip"}, "{seed}", "config.input.on_error"),
    ({"input.data.subset_seed": 0}, "{seed}", "has subset_seed or seed, which"),
    ({"input.seed": 0}, "{seed}", "has subset_seed or seed, which"),
    ({}, "w", r"it must contain '\{seed\}'"),
  ],
)
def test_refused(changes, pattern, message):
  with pytest.raises(ValueError, match=message):
    loop.train(_config(**changes), pattern, SEEDS)
  for seeds, told in (([0, 1, 0], "0,1,0"), ([2**32], "4294967296"), ([], "")):
    with pytest.raises(ValueError, match=f"--seeds={told}: expected different"):
      loop.train(_config(), pattern, seeds)


def test_one_subset_for_all_seeds():
  config = _config(**{"input.data.subset_seed": 10, "seed": 1})
  assert len(seeds_lib.of_config(config, "{seed}", SEEDS)) == len(SEEDS)
