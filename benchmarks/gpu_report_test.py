"""The report goes on without what fails, and says what it has measured."""

import dataclasses
import html
import json
import re

import numpy as np
import pytest

from benchmarks import gpu_page, gpu_parts, gpu_report, step, step_peers

B16 = step_peers.Setting("B/16", dtype="bfloat16")


def _figures(speed, **more):
  return {"img_per_sec": speed, "step_secs_p50": 1 / speed, **more}


@pytest.fixture(name="write")
def _write(tmp_path):
  def write(name, results, **about):
    kept = {"about": {"code": 1, **about}, "results": results}
    (tmp_path / f"{name}.json").write_text(json.dumps(kept))

  return write


def _rows(page):
  """Returns the rows of all tables as {first cell: other cells}."""
  rows = [
    [html.unescape(cell) for cell in re.findall("<t[hd].*?>(.*?)</t[hd]>", row)]
    for row in re.findall("<tr.*?</tr>", page, re.DOTALL)
  ]
  return {row[0]: row[1:] for row in rows if row}


def test_goals_by_hand(tmp_path, write):
  def write_steps(name, row, **figures):
    write(name, {row: {"figures": figures}})

  row = step.name_of(B16)
  slower = step.name_of(dataclasses.replace(B16, batch_size=8))
  fast, slow = (_figures(v, mfu=v * 5.6e-4) for v in (1000, 900))
  write_steps("step_B16_8", slower, ours=slow)
  write_steps("step_B16_16", row, ours=fast)
  write_steps("peers_timm_B16_8", slower, timm=_figures(800))
  write_steps("peers_timm_B16_16", row, timm=_figures(780))
  norm = lambda ratio: {"ours": 1.0, "fastest": 1.0, "ratio": ratio}
  arms = {"stem_ln=dpn": norm(1.02), "pre-LN again": norm(0.999)}
  write("stem_B16_16", arms)
  write("loading", {"crop": {"ours": 950.0}})
  write("numbers", {"odd": {"found": 2e-4, "most": 1e-3, "met": True}})
  page = gpu_page.page(tmp_path, B16, ["norms failed: it <broke>"])
  best = "speed / timm compiled, each at its best of 2 batch sizes"
  cost = "time for Dual PatchNorm (the same step again: -0.1%)"
  for what, cells in {
    "MFU of B/16, best of 2 batch sizes": ["≥ 55%", "56.0%", "yes"],
    best: ["≥ 1.2", "1.25", "yes"],
    cost: ["≤ 1%", "+2.0%", "no"],
    "odd": ["2.0e-04", "1e-03"],
    slower: ["900", "no"],  # not input-bound
    row: ["1,000", "yes"],
  }.items():
    assert _rows(page)[what] == cells
  assert "norms failed: it &lt;broke&gt;" in page
  assert "Not all was measured alike" not in page

  (tmp_path / "peers_timm_B16_16.json").unlink()  # its best may be this one
  page = gpu_page.page(tmp_path, B16, [])
  assert _rows(page)[best] == ["≥ 1.2", "not measured", "–"]


def test_what_changed_in_between(tmp_path, write):
  write("loading", {"crop": {}}, code=2, device="A")
  for name in ("norms_00", "norms_06"):
    write(name, {}, device="A")
  page = gpu_page.page(tmp_path, B16, [])
  alike = "Not all was measured alike: norms_00, norms_06 with code 1; "
  assert f"{alike}loading with code 2." in page
  assert page.count("not measured") == 3


def test_gradients_are_compared():
  tree = lambda *x: {"a": np.array(x[:2]), "b": np.array(x[2:])}
  one, other = lambda: tree(3.0, 0.0, 4.0), lambda: tree(3.0, 0.5, 4.0)
  found = gpu_parts.compare(other, one, 0.09)
  assert found == {"found": 0.1, "most": 0.09, "met": False}
  assert gpu_parts.compare(other, one, 0.11)["met"]
  assert not gpu_parts.compare(lambda: tree(np.nan, 0, 0), one, 0.11)["met"]

  def fails():
    raise ValueError("no cuDNN")

  assert gpu_parts.compare(fails, one, 1)["error"] == "no cuDNN"


@pytest.fixture
def parts(monkeypatch, tmp_path):
  """Replaces the parts by one that works and some that do not."""
  apart = lambda found: "" if found["x"] else "too far apart"
  found = {
    "works": lambda report: report.run("works", "works"),
    "fails": lambda report: report.run("fails", "fails"),
    "wrong": lambda report: report.run("wrong", "wrong", wrong=apart),
    "hangs": lambda report: report.run("hangs", "hangs"),
    "late": lambda report: report.run("late", "hangs"),
  }
  modules = tmp_path / "modules"
  modules.mkdir()
  write = "import sys; open(sys.argv[2], 'w').write('{\"x\": %d}')"
  (modules / "works.py").write_text(write % 1)
  (modules / "wrong.py").write_text(write % 0)
  (modules / "fails.py").write_text("raise SystemExit('no such kernel')")
  (modules / "hangs.py").write_text("import time; time.sleep(600)")
  monkeypatch.setenv("PYTHONPATH", str(modules))
  monkeypatch.setattr(gpu_report, "PARTS", found)


def _report(*words):
  with pytest.raises(SystemExit) as end:
    gpu_report.main([*words])
  return str(end.value.code)


@pytest.mark.usefixtures("parts")
def test_it_goes_on(tmp_path, capsys):
  out = tmp_path / "out"
  command = ["--tiny", "--out", str(out), "--minutes", "0.05"]
  assert _report(*command) == "True"
  page, said = (out / "report.html").read_text(), capsys.readouterr().out
  for failure in (
    "fails failed: no such kernel",
    "wrong failed: too far apart",
    "hangs failed: stopped: the time was over",
    "late failed: not run: 0.05 minutes are over.",
  ):
    assert failure in page
    assert failure in said
  assert [path.name for path in out.glob("*.json")] == ["works.json"]
  # What is there is not measured again, and not mixed with the real thing.
  only = ["--out", str(out), "--only", "works", "--minutes", "0"]
  assert _report("--tiny", *only) == "False"
  assert _report(*only).startswith(f"Error: {out} has results with --tiny=True")


@pytest.mark.slow
def test_a_report_in_small(tmp_path):
  command = ["--tiny", "--out", str(tmp_path), "--only", "versions", "step"]
  assert _report(*command) == "False"
  assert "mu/16 32px batch 4 float32" in (tmp_path / "report.html").read_text()
