"""Run folders are read as written; what is no run is told apart."""

import numpy as np
import pytest

from scripts import runs, testing

ROWS = [
  {"step": 50, "loss": 2.0},
  {"step": 75, "test/prec@1": 0.5},
  {"step": 100, "loss": 1.0, "test/prec@1": 0.75},
]


def test_reads_what_was_written(tmp_path):
  kernel = np.arange(6, dtype=np.float32).reshape(2, 3)
  testing.write_run(
    tmp_path / "a", rows=ROWS, seconds=7.0, params={"head/kernel": kernel}
  )
  run = runs.read(str(tmp_path / "a"))
  assert run.config["seed"] == 0
  assert run.final("test/prec@1") == 0.75
  steps, losses = run.series("loss")
  assert steps.tolist() == [50, 100]
  assert losses.tolist() == [2.0, 1.0]
  steps, accuracies = run.series("test/prec@1")
  assert steps.tolist() == [75, 100]
  assert accuracies.tolist() == [0.5, 0.75]
  np.testing.assert_array_equal(run.param("head/kernel"), kernel)


def test_incomplete_run_has_a_history_but_no_result(tmp_path):
  testing.write_run(tmp_path / "a", rows=ROWS)
  run = runs.read(str(tmp_path / "a"))
  assert run.done is None
  assert run.series("loss")[1].tolist() == [2.0, 1.0]
  with pytest.raises(ValueError, match="incomplete: train it to its end"):
    run.final("loss")
  with pytest.raises(ValueError, match=r"params\.safetensors is missing"):
    run.param("head/kernel")


def test_unknown_names_bring_the_nearest(tmp_path):
  params = {"head/kernel": np.zeros(1, np.float32)}
  testing.write_run(tmp_path / "a", rows=ROWS, seconds=7.0, params=params)
  run = runs.read(str(tmp_path / "a"))
  with pytest.raises(ValueError, match="Did you mean 'test/prec@1'"):
    run.final("test/prec1")
  with pytest.raises(ValueError, match="Did you mean 'loss'"):
    run.series("los")
  with pytest.raises(ValueError, match="Did you mean 'head/kernel'"):
    run.param("head/kernl")


def test_read_all_takes_run_folders_in_order(tmp_path):
  for name in ("b", "a"):
    testing.write_run(tmp_path / name, rows=ROWS)
  (tmp_path / "report.html").write_text("")
  (tmp_path / "notes").mkdir()
  found = runs.find([str(tmp_path)])
  assert [run.path for run in found] == [str(tmp_path / n) for n in "ab"]


def test_folders_without_runs_are_refused(tmp_path):
  with pytest.raises(ValueError, match=r"it has no config\.json"):
    runs.read(str(tmp_path))
  with pytest.raises(ValueError, match="Found no run in"):
    runs.find([str(tmp_path)])
  with pytest.raises(ValueError, match="Found no run in"):
    runs.find([str(tmp_path / "nowhere")])


def test_damaged_json_is_named(tmp_path):
  testing.write_run(tmp_path / "a", rows=ROWS)
  (tmp_path / "a" / "done.json").write_text("{")
  with pytest.raises(ValueError, match=r"done\.json is damaged"):
    runs.read(str(tmp_path / "a"))
