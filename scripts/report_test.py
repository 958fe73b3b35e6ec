"""The page holds every result, every run and how they differ."""

import json
import shutil

import numpy as np
import pytest

from dpn.scripts import conftest as testing
from dpn.scripts import report
from dpn.scripts.results import render

AUGREG = {"recipe": "AugReg", "arch": "B/16", "metric": "val/prec@1"}
NORMS = {
  f"grad_norm{mean}/{group}": 0.5
  for mean in ("", "_mean")
  for group in ("embedding", "block00")
}


def _write(root, stem, seed, accuracy, lr=1.0):
  testing.write_run(
    root / f"{stem}-s{seed}",
    stem_ln=stem,
    seed=seed,
    config={"table": AUGREG, "lr": lr},
    rows=[{"step": 20, "loss": 1.5, "val/prec@1": accuracy, **NORMS}],
    seconds=60.0,
    params={"stem/ln0/scale": np.ones(12, np.float32)},
  )


@pytest.fixture
def root(tmp_path):
  for seed, (none, dpn) in enumerate([(0.80, 0.81), (0.81, 0.83)]):
    _write(tmp_path, "none", seed, none)
    _write(tmp_path, "dpn", seed, dpn)
  testing.write_run(
    tmp_path / "cut",
    config={"lr": 0.5, "total_steps": 90},
    rows=[{"step": 30, "loss": 2.5}],
  )
  testing.write_run(tmp_path / "nan", config={"lr": 0.5}, seed=1)
  (tmp_path / "nan/diverged.txt").write_text("Loss is NaN at step 7.")
  return tmp_path


def _page(root, *argv):
  report.main([str(root), "-o", str(root / "r.html"), *argv])
  return testing.Page((root / "r.html").read_text("utf-8"))


def _images(page):
  return [attrs for tag, attrs in page.tags if tag == "img"]


def test_a_page_of_everything(root, capsys):
  page = _page(root, "--title", "A title", "--note", "A note", "--note", "More")
  assert str(root / "r.html") in capsys.readouterr().out
  text = set(page.text)
  assert {"A title", "A note", "More"} <= text
  # Of two runs both numbers: an interval with t = 12.7 would say nothing.
  assert "80.50 (n=2: 80.00, 81.00)" in text
  assert "+1.50 (n=2: +1.00, +2.00, paired)" in text
  assert "80.4 ± 0.26" in text
  assert {"complete", "incomplete, step 30 of 90", "val/prec@1 83.00%"} <= text
  assert "diverged, step 0" in text
  assert any('model.stem_ln = "dpn"' in t for t in text)
  assert any("lr = 0.5" in t for t in text)
  images = _images(page)
  # Differences, loss, accuracy, gradients by depth and by step, Figure 3.
  assert len(images) == 6
  assert all(i["src"].startswith("data:image/png;base64,") for i in images)
  assert all(i["alt"] for i in images)
  assert not {"link", "script", "iframe"} & {tag for tag, _ in page.tags}
  # Nothing is loaded; links stay in the page and lead somewhere.
  ids = {attrs.get("id") for _, attrs in page.tags}
  links = [attrs["href"] for _, attrs in page.tags if "href" in attrs]
  assert links
  assert {link.removeprefix("#") for link in links} <= ids
  assert not any("srcset" in attrs for _, attrs in page.tags)


def test_ones_own_runs_come_before_the_paper(root):
  shutil.rmtree(root / "cut")
  page = _page(root)
  headings = [t for t in page.text if t[:2] in {f"{i}." for i in range(1, 10)}]
  assert [h.partition(" ")[2] for h in headings if h[2] == " "] == 2 * [
    *("Results", "Curves"),
    "Gradients, and what the first LayerNorm learned",
    *("Beside the paper", "Runs", "How the configs differ"),
  ]
  words = page.text.index(
    "dpn − base (AugReg B/16, val/prec@1): +1.50 points; +1.00 and +2.00 by "
    "seed, too few for an interval (2 seeds, paired)."
  )
  own = page.text.index("80.50 (n=2: 80.00, 81.00)")
  assert words < own < page.text.index("80.4 ± 0.26")
  # 9 of the 10 rows of Table 1 (left) were not run, and are left out.
  assert "--table 1_left has them" in "".join(page.text)


def test_every_arm_is_in_every_curve(tmp_path, monkeypatch):
  stems = ("none", "dpn", "pre", "post", "rmsnorm", "whiten", "whiten_ln")
  stems += ("post_posemb", "only_learnable", "no_learnable")
  for stem in stems:
    _write(tmp_path, stem, 0, 0.5)
  drawn = {}

  def pictures(shown):
    drawn.update({picture.title: picture.figure for picture in shown})
    return {"kind": "lines", "text": ""}

  monkeypatch.setattr(render, "pictures", pictures)
  _page(tmp_path)
  for title in ("Training loss", "val/prec@1", "Gradient norm by depth"):
    panels = {ax.get_title() for ax in drawn[title].axes}
    assert len(panels) == 10, title  # more than there are colours
    assert {"ViT", "Dual PatchNorm", "pre", "no_learnable"} <= panels


def test_another_baseline(root):
  page = _page(root, "--baseline", "dpn")
  assert "minus dpn" in page.text
  assert "−1.50 (n=2: −1.00, −2.00, paired)" in page.text
  with pytest.raises(SystemExit, match="Unknown baseline 'dnp'"):
    _page(root, "--baseline", "dnp")


def test_runs_of_another_task_show_what_they_measured(tmp_path):
  for seed in range(2):
    testing.write_run(
      tmp_path / f"s{seed}",
      seed=seed,
      config={"model": {"width": 4}, "input": {}},
      results={"loss": 1.0, "val/mse": 2.0 + seed, "val/mae": 1.5},
    )
  page = _page(tmp_path)
  shown = {"val/mse", "2.5000 (n=2: 2.0000, 3.0000)", "val/mae"}
  assert shown <= set(page.text)
  assert "val/mse 2, val/mae 1.5" in page.text
  assert len(_images(page)) == 2


def test_a_table_that_means_nothing_is_left_out_and_said(root, capsys):
  config = json.loads((root / "dpn-s0" / "config.json").read_text())
  (root / "dpn-s1" / "config.json").write_text(json.dumps(config))
  with pytest.raises(SystemExit) as error:
    _page(root)
  own, paper = str(error.value).splitlines()
  assert own.startswith("Error: left out: AugReg B/16: ")
  assert paper.startswith("Error: left out: Table 1 (left): ")
  assert "have the same seed" in own
  assert "Wrote " in capsys.readouterr().out
  text = testing.Page((root / "r.html").read_text("utf-8")).text
  assert any(t.startswith("Left out: Table 1 (left): ") for t in text)
  assert any("How the configs differ" in t for t in text)


def test_mfu_of_complete_and_incomplete_runs_is_in_one_unit(root):
  timing = {"step": 20, "images_per_sec": 1234.0, "core_hours": 0.25}
  for name in ("none-s0", "dpn-s0"):
    row = timing | {"mfu": 0.4, "seconds": 30.0}
    (root / name / "timing.jsonl").write_text(json.dumps(row) + "\n")
  path = root / "none-s0" / "done.json"
  done = json.loads(path.read_text())
  path.write_text(json.dumps(done | timing | {"mfu": 0.5}))
  (root / "dpn-s0" / "done.json").unlink()
  page = _page(root)
  assert page.text.count("45%") == 1  # the mean of 50% and 40%
  assert page.text.count("1,234") == 3  # the model's row and two runs
  assert page.text.count("30 s") == 1  # the incomplete run's
  assert "0.50" in page.text  # core hours


def test_an_arm_of_any_option_is_named_and_one_in_conflict_left_out(tmp_path):
  for seed in range(2):
    _write(tmp_path, "none", seed, 0.5)
    _write(tmp_path, "dpn", seed, 0.6)
    _write(tmp_path, "post", seed, 0.7, lr=1.0 + seed)
    _write(tmp_path / f"{seed}", "pre", 0, 0.7 + seed / 10)
  for name in ("none", "dpn"):  # further arms: all but one field as before
    for seed in range(2):
      model = {"stem_ln": name, "qk_norm": "layernorm", "norm": "mine:Norm"}
      testing.write_run(
        tmp_path / f"{name}-own-s{seed}",
        seed=seed,
        config={"table": AUGREG, "model": model, "lr": 1.0},
        rows=[{"step": 20, "loss": 1.5, "val/prec@1": 0.8}],
        seconds=60.0,
      )
  with pytest.raises(SystemExit, match=r"B/16: pre: .* the same seed \(0\)"):
    _page(tmp_path)
  text = testing.Page((tmp_path / "r.html").read_text("utf-8")).text
  own = "mine:Norm+qk_norm=layernorm"
  assert {"base (ViT)", own, f"dpn+{own}", "post+lr=2.0"} <= set(text)
  assert "+10.00 (n=2: +10.00, +10.00, paired)" in text
