"""The page holds every result, every run and how they differ."""

import json

import numpy as np
import pytest

from scripts import quickstart_test, report, testing


@pytest.fixture
def root(tmp_path):
  for seed, (none, dpn) in enumerate([(0.80, 0.81), (0.81, 0.83)]):
    for stem, value in (("none", none), ("dpn", dpn)):
      testing.write_run(
        tmp_path / f"{stem}-s{seed}",
        config={
          "input": {"data": {"name": "imagenet2012"}},
          "loss": "sigmoid_xent",
          "model": {"variant": "B/16", "stem_ln": stem},
        },
        seed=seed,
        rows=[{"step": 20, "loss": 1.5, "val/prec@1": value}],
        seconds=60.0,
        params={"stem/ln0/scale": np.ones(12, np.float32)},
      )
  testing.write_run(
    tmp_path / "cut",
    config={"lr": 0.5, "total_steps": 90},
    rows=[{"step": 30, "loss": 2.5}],
  )
  return tmp_path


def test_a_page_of_everything(root, tmp_path, capsys):
  path = tmp_path / "report.html"
  argv = [str(root), "-o", str(path), "--title", "A title", "--note", "A note"]
  report.main(argv)
  assert str(path) in capsys.readouterr().out
  page = quickstart_test.Page(path.read_text("utf-8"))
  text = set(page.text)
  assert {"A title", "A note"} <= text
  # 80 and 81: s = 0.707, so 12.706 · 0.5 = 6.35; 1 and 2 points the same.
  assert {"80.50 ± 6.35 (n=2)", "+1.50 ± 6.35 (n=2, paired)"} <= text
  assert {"80.4 ± 0.06", "not run"} <= text
  assert {"complete", "incomplete, step 30 of 90", "val/prec@1 83.00%"} <= text
  assert any('model.stem_ln = "dpn"' in t for t in text)
  assert any("lr = 0.5" in t for t in text)
  assert any("Without any result here: Table 1 (right)" in t for t in text)
  images = [attrs for tag, attrs in page.tags if tag == "img"]
  assert len(images) == 5  # Figure 1, 3, Table 6, loss, accuracy
  assert all(i["src"].startswith("data:image/png;base64,") for i in images)
  assert not {"link", "script", "iframe"} & {tag for tag, _ in page.tags}
  assert sum("Not drawn, Figure" in t for t in text) == 2  # 2 and 4


def test_a_table_that_means_nothing_is_left_out_and_said(root, capsys):
  config = json.loads((root / "dpn-s0" / "config.json").read_text())
  (root / "dpn-s1" / "config.json").write_text(json.dumps(config))
  with pytest.raises(
    SystemExit, match=r"left out: Table 1 \(left\): .* the same"
  ):
    report.main([str(root), "-o", str(root / "r.html")])
  assert "Report: " in capsys.readouterr().out
  text = quickstart_test.Page((root / "r.html").read_text("utf-8")).text
  assert any(t.startswith("Left out: Table 1 (left): ") for t in text)
  assert "How the configs differ" in text


def test_speed_is_shown_where_it_was_recorded(root):
  timing = {"step": 20, "images_per_sec": 1234.0, "core_hours": 0.25}
  for name in ("none-s0", "none-s1"):
    path = root / name / "timing.jsonl"
    path.write_text(json.dumps(timing) + "\n")
  report.main([str(root), "-o", str(root / "r.html")])
  text = quickstart_test.Page((root / "r.html").read_text("utf-8")).text
  assert text.count("1,234") == 3  # the model's row and two runs
  assert "0.50" in text  # core hours


def test_folders_without_runs_are_refused(tmp_path):
  with pytest.raises(SystemExit, match="Found no run"):
    report.main([str(tmp_path)])
