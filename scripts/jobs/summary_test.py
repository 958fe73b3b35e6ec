"""The table at a sweep's end, against intervals by hand."""

import pytest

from dpn.scripts import conftest as testing
from dpn.scripts.jobs import arms, summary

METRIC = {"table": {"metric": "val/prec@1"}}


@pytest.fixture
def arm(tmp_path):
  """Returns a function that makes an arm's run with an accuracy."""

  def make(
    name, seed, accuracy=None, config=METRIC, metric="val/prec@1", fields=()
  ):
    folder = tmp_path / f"{name}-s{seed}"
    rows = [{"step": 9, "loss": 0.5, metric: accuracy or 0.0}]
    done = None if accuracy is None else 1.0
    testing.write_run(folder, seed=seed, config=config, rows=rows, seconds=done)
    return arms.Arm(name, "", seed, dict(fields), str(folder))

  return make


def test_one_two_and_more_seeds(arm):
  found = [
    *(arm("none", seed, x) for seed, x in enumerate((0.9, 0.92, 0.97))),
    *(arm("dpn", seed, x) for seed, x in enumerate((0.95, 0.9612))),
    arm("pre", 0, 0.5),
    arm("pre", 1),  # not finished
    arm("post", 0),
    arm("vtab", 0, 0.5, {"table": {"metric": "test/prec@1"}}, "minival/prec@1"),
    arm("other", 0, 2.34567, {}, "val/score", {"model.qk_norm": "rmsnorm"}),
  ]
  header, *lines = summary.table(found).splitlines()
  assert header.split()[:2] == ["arm", "metric"]
  # s = 3.6056, t(0.975, 2) = 4.3027, so 4.3027 · 3.6056 / √3 = 8.96.
  assert [line.split(maxsplit=3) for line in lines[:4]] == [
    ["none", "val/prec@1", "[%]", "93.00 ± 8.96 (n=3)"],
    ["dpn", "val/prec@1", "[%]", "95.56 (n=2: 95.00, 96.12)"],
    ["pre", "val/prec@1", "[%]", "50.00 (n=1)"],
    ["vtab", "minival/prec@1", "[%]", "50.00 (n=1)"],
  ]
  called = "other+qk_norm=rmsnorm"
  assert lines[4].split() == [called, "val/score", "2.3457", "(n=1)"]
  assert len(lines) == 5


def test_runs_before_and_after_an_edited_config_have_no_mean(arm):
  found = [arm("dpn", seed, 0.9, METRIC | {"lr": seed}) for seed in range(2)]
  assert (
    summary.table(found)
    .splitlines()[1]
    .endswith("fill the same cell and differ in more than the seed (lr: 0, 1)")
  )


def test_nothing_is_finished(arm):
  assert summary.table([arm("none", 0)]) == ""
