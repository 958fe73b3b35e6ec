"""Run folders are read as written; what is no run is told apart."""

import dataclasses

import numpy as np
import pytest

from scripts import testing
from scripts.results import runs

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


def test_find_takes_run_folders_in_order_and_once(tmp_path):
  for name in ("b", "a"):
    testing.write_run(tmp_path / name, rows=ROWS)
  (tmp_path / "report.html").write_text("")
  testing.write_run(tmp_path / "more" / "c", rows=ROWS)
  (tmp_path / "notes").mkdir()
  (tmp_path / "link").symlink_to(tmp_path / "more", target_is_directory=True)
  folders = [str(tmp_path), str(tmp_path / "a"), str(tmp_path / "link")]
  found = runs.find(folders)
  names = ["a", "b", "more/c"]
  assert [run.path for run in found] == [str(tmp_path / n) for n in names]


def test_a_killed_run_may_have_cut_its_last_line(tmp_path):
  testing.write_run(tmp_path / "a", rows=ROWS)
  path = tmp_path / "a" / "metrics.jsonl"
  whole = path.read_text()
  path.write_text(whole + '{"step": 150, "lo')
  assert [row["step"] for row in runs.read(str(path.parent)).rows] == [
    50,
    75,
    100,
  ]
  path.write_text(whole.rstrip())  # no newline, but whole
  assert len(runs.read(str(path.parent)).rows) == 3
  path.write_text('{"step": 1, "lo\n' + whole)
  with pytest.raises(ValueError, match=r"metrics\.jsonl, line 1 is damaged"):
    runs.read(str(path.parent))


def test_speed_and_origin_where_they_were_recorded(tmp_path):
  testing.write_run(tmp_path / "a", rows=ROWS, seconds=7.0)
  run = runs.read(str(tmp_path / "a"))
  assert (run.commit, run.device) == ("unknown", "unknown")
  assert run.timed("images_per_sec", "img_per_sec") is None
  other = dataclasses.replace(run, config=dict(run.config, seed=1))
  assert run.config_hash != other.config_hash
  (tmp_path / "a" / "environment.json").write_text(
    '[{"commit": "0a"}, {"commit": "1b", "config_hash": "cd", '
    '"device_kind": "TPU v4", "num_devices": 8}]'
  )
  timing = '{"step": 1, "img_per_sec": 5}\n{"step": 2, "img_per_sec": 7}\n'
  (tmp_path / "a" / "timing.jsonl").write_text(timing)
  run = runs.read(str(tmp_path / "a"))
  assert (run.commit, run.config_hash) == ("1b", "cd")
  assert run.device == "8 × TPU v4"
  assert run.timed("images_per_sec", "img_per_sec") == 6
  assert run.timed("core_hours", "img_per_sec", last=True) == 7
  run = dataclasses.replace(run, done={"images_per_sec": 9})
  assert run.timed("images_per_sec", "img_per_sec") == 9


def test_folders_without_runs_are_refused(tmp_path):
  with pytest.raises(ValueError, match=r"it has no config\.json"):
    runs.read(str(tmp_path))
  with pytest.raises(ValueError, match="Found no run in"):
    runs.find([str(tmp_path)])
  with pytest.raises(ValueError, match="Found no run in"):
    runs.find([str(tmp_path)])
  with pytest.raises(ValueError, match="nowhere is not a folder"):
    runs.find([str(tmp_path / "nowhere")])


def test_damaged_json_is_named(tmp_path):
  testing.write_run(tmp_path / "a", rows=ROWS)
  (tmp_path / "a" / "done.json").write_text("{")
  with pytest.raises(ValueError, match=r"done\.json is damaged"):
    runs.read(str(tmp_path / "a"))


@pytest.mark.parametrize(
  ("file", "content", "error"),
  [
    ("config.json", "[1]", r"holds \[1\], expected an object"),
    ("config.json", '{"seed": "one"}', "'seed' is 'one', expected an integer"),
    ("config.json", '{"table": "3"}', "'table' is '3', expected an object"),
    ("done.json", "[]", r"holds \[\], expected an object"),
    ("environment.json", "{}", "expected a list"),
  ],
)
def test_json_of_another_kind_is_named(tmp_path, file, content, error):
  testing.write_run(tmp_path / "a", rows=ROWS)
  (tmp_path / "a" / file).write_text(content)
  with pytest.raises(ValueError, match=error):
    runs.read(str(tmp_path / "a"))


def test_a_run_is_complete_with_any_done_json(tmp_path):
  """Without metrics there, what the last step logged counts, in all rows."""
  rows = [*ROWS, {"step": 100, "test/loss": "low"}]
  testing.write_run(tmp_path / "a", rows=rows)
  (tmp_path / "a" / "done.json").write_text("{}")
  run = runs.read(str(tmp_path / "a"))
  assert run.status == "complete"
  assert (run.final("loss"), run.final("test/prec@1")) == (1.0, 0.75)
  with pytest.raises(ValueError, match="test/loss is 'low', expected a number"):
    run.final("test/loss")
