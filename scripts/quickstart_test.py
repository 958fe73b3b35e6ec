"""Table and page of made-up runs with known means."""

import html.parser
import json
import pathlib

import numpy as np
import pytest

from scripts import quickstart, testing
from scripts.results import runs


def _write(root, stem_ln, seed, accuracy, *, complete=True):
  rows = [
    {
      "step": step,
      "loss": 1.0,
      "grad_norm/embedding": 0.5,
      "grad_norm/block00": 0.1,
      "test/prec@1": accuracy,
      "fewshot/digits_5shot": accuracy - 0.1,
    }
    for step in (10, 20)
  ]
  params = {"stem/ln0/scale": np.full(6, 1 + 0.1 * seed, np.float32)}
  testing.write_run(
    root / f"{stem_ln}-{seed}",
    stem_ln=stem_ln,
    seed=seed,
    rows=rows,
    seconds=30.0 + seed if complete else None,
    params=params,
  )


@pytest.fixture
def root(tmp_path):
  for seed, (none, dpn) in enumerate([(0.96, 0.97), (0.97, 0.99), (0.98, 1.0)]):
    _write(tmp_path, "none", seed, none)
    _write(tmp_path, "dpn", seed, dpn)
  return tmp_path


def _arms(root):
  return quickstart.by_arm(runs.find([str(root)]))


def test_rows_are_means_with_intervals(root):
  # none: s = 0.01, so 4.303 · 1 / √3 = 2.5 points. dpn: 97, 99, 100 have mean
  # 98.67 and s = 1.528, so 3.8 points.
  assert quickstart.results(_arms(root)) == [
    ("ViT (none)", "3", "97.0 ± 2.5", "87.0 ± 2.5", "31"),
    ("Dual PatchNorm (dpn)", "3", "98.7 ± 3.8", "88.7 ± 3.8", "31"),
  ]


def test_gain_pairs_the_seeds(root):
  # 1, 2 and 2 points: mean 1.667, s = 0.577, 4.303 · 0.577 / √3 = 1.434.
  gain = quickstart.gain(_arms(root))
  assert gain.value == pytest.approx(0.01667, abs=1e-5)
  assert gain.ci == pytest.approx(0.01434, abs=1e-5)


def test_incomplete_runs_are_marked_and_not_counted(root):
  _write(root, "none", 3, 0.1, complete=False)
  arm, count, accuracy, *_ = quickstart.results(_arms(root))[0]
  assert (arm, accuracy) == ("ViT (none)", "97.0 ± 2.5")
  assert count == "3 of 4, others incomplete"
  assert "3 of 4, others incomplete" in quickstart.report(_arms(root))


def test_an_arm_without_a_complete_run_has_no_numbers(tmp_path):
  _write(tmp_path, "none", 0, 0.96)
  _write(tmp_path, "dpn", 0, 0.97, complete=False)
  rows = quickstart.results(_arms(tmp_path))
  assert rows[1][1:] == ("0 of 1, others incomplete", "–", "–", "–")
  assert "seed by seed" not in quickstart.report(_arms(tmp_path))


class Page(html.parser.HTMLParser):
  """Collects the tags and the text of a page."""

  def __init__(self, text):
    super().__init__()
    self.tags, self.text = [], []
    self.feed(text)

  def handle_starttag(self, tag, attrs):
    self.tags.append((tag, dict(attrs)))

  def handle_data(self, data):
    self.text.append(data)


def test_report_holds_everything_itself(root, capsys):
  quickstart.main([str(root)])
  path = root / "report.html"
  assert str(path) in capsys.readouterr().out
  page = Page(path.read_text("utf-8"))
  images = [attrs for tag, attrs in page.tags if tag == "img"]
  assert len(images) == 4
  assert all(i["src"].startswith("data:image/png;base64,") for i in images)
  assert all(len(i["src"]) > 5000 and i["alt"] for i in images)
  assert not {"link", "script", "iframe"} & {tag for tag, _ in page.tags}
  assert not any({"href", "srcset"} & attrs.keys() for _, attrs in page.tags)
  assert not any("url(" in text for text in page.text)
  assert {"97.0 ± 2.5", "98.7 ± 3.8"} <= set(page.text)


def test_report_shows_the_published_numbers(root):
  text = set(Page(quickstart.report(_arms(root))).text)
  # Table 1 (left): B/16 trained with AugReg, and B/16 with DeiT.
  assert {"80.4 ± 0.06", "81.1 ± 0.09", "+0.7"} <= text
  assert {"81.8 ± 0.03", "82.0 ± 0.05", "+0.2"} <= text
  assert any("arXiv 2302.01327, Table 1 (left)" in t for t in text)


def test_folders_that_cannot_be_reported(tmp_path):
  with pytest.raises(SystemExit, match="Found no run"):
    quickstart.main([str(tmp_path)])
  _write(tmp_path, "none", 0, 0.96, complete=False)
  with pytest.raises(SystemExit, match="None of the runs is complete"):
    quickstart.main([str(tmp_path)])


def test_config_of_a_run_is_what_the_page_says(root):
  config = json.loads(pathlib.Path(root, "none-0", "config.json").read_text())
  assert config["model"]["patch_size"] == [2, 3]
  text = " ".join(Page(quickstart.report(_arms(root))).text)
  assert "width 8 with 2 blocks on patches of 2×3 pixels, for 20 steps" in text
