"""A run's directory keeps to one config, but for what changes no number."""

import json

import pytest

from trainers import workdir

CONFIG = {
  "lr": 0.1,
  "input": {"data": {"name": "x"}, "num_threads": 4},
  "schedule": [("head", None), (".*", {"warmup_steps": 1})],
  "wd": None,
}


def test_the_config_is_written(tmp_path):
  workdir.prepare(str(tmp_path / "a" / "run"), CONFIG)
  written = json.loads((tmp_path / "a" / "run" / "config.json").read_text())
  assert written == json.loads(json.dumps(CONFIG))


@pytest.mark.parametrize(
  ("changes", "name"),
  [
    ({"lr": 0.2}, r"  lr: 0.1 there, 0.2 now\n"),
    ({"wd": 1e-4}, r"  wd: 'absent' there, 0.0001 now\n"),
    ({"schedule": {}}, "  schedule.1.1.warmup_steps: 1 there, 'absent' now"),
    ({"input": {"data": {"name": "y"}}}, r"  input.data.name: 'x' there, 'y'"),
  ],
)
def test_another_config_is_refused(tmp_path, changes, name):
  workdir.prepare(str(tmp_path), CONFIG)
  (tmp_path / "checkpoints" / "5").mkdir(parents=True)
  with pytest.raises(ValueError, match=name):
    workdir.prepare(str(tmp_path), CONFIG | changes)
  assert json.loads((tmp_path / "config.json").read_text())["lr"] == 0.1
  workdir.prepare(str(tmp_path), CONFIG | changes, allow_config_change=True)
  workdir.prepare(str(tmp_path), CONFIG | changes)


def test_a_config_may_be_mended_before_the_first_checkpoint(tmp_path):
  workdir.prepare(str(tmp_path), CONFIG)
  (tmp_path / "checkpoints").mkdir()
  workdir.prepare(str(tmp_path), CONFIG | {"lr": 0.2})
  assert json.loads((tmp_path / "config.json").read_text())["lr"] == 0.2


@pytest.mark.parametrize(
  "changes",
  [
    {},
    {"input": {"data": {"name": "x", "data_dir": "/d"}, "num_workers": 2}},
    {"mesh": [("data", 2), ("model", 2)], "sharding_strategy": [("a", "b")]},
    {"ckpt_steps": 5, "ckpt_timeout": 1, "prefetch_to_device": 4},
    {"wandb": {"project": "p"}},
  ],
)
def test_what_changes_no_number_is_free(tmp_path, changes):
  workdir.prepare(str(tmp_path), CONFIG)
  (tmp_path / "checkpoints" / "5").mkdir(parents=True)
  workdir.prepare(str(tmp_path), CONFIG | changes)
  written = json.loads((tmp_path / "config.json").read_text())
  assert written == json.loads(json.dumps(CONFIG | changes))
