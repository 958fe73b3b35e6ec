"""The report goes on without what fails, and says what it has measured."""

import json
import re

import numpy as np
import pytest

from dpn.scripts import bench_step, gpu_report, testing
from benchmarks import gpu_page, gpu_parts, step_peers

B16 = step_peers.Setting("B/16", dtype="bfloat16")


def _figures(speed, **more):
  return {"img_per_sec": speed, "step_secs_p50": 1 / speed, **more}


@pytest.fixture(name="write")
def _write(tmp_path):
  def write(name, results, **about):
    kept = {"about": {"code": 1, **about}, "results": results}
    (tmp_path / f"{name}.json").write_text(json.dumps(kept))

  return write


def test_goals_by_hand(tmp_path, write):
  def write_steps(name, row, **figures):
    write(name, {row: {"figures": figures}})

  row = step.name_of(B16)
  slower = row.replace("batch 16", "batch 8")
  memory = {"peak_memory_gb": 3.0, "reserved_gb": 2.5}
  fast, slow = (_figures(v, mfu=v * 5.6e-4, **memory) for v in (1000, 900))
  write_steps("step_B16_8", slower, ours=slow)
  write_steps("step_B16_16", row, ours=fast)
  write_steps("peers_B16_8", slower, timm=_figures(800))
  write_steps("peers_B16_16", row, timm=_figures(780))
  norm = lambda ratio: {"ours": 1.0, "fastest": 1.0, "ratio": ratio}
  arms = {"stem_ln=dpn": norm(1.02), "pre-LN again": norm(0.999)}
  write("stem_B16_16", arms)
  write("memory_B16_16", {"a": 2**30, "b": 2**30})
  write("loading", {"crop": {"ours": 950.0}})
  rows = {"float32": {"found": 2e-3, "most": 1e-3, "met": False}}
  write("numbers", rows | {"odd": {"error": "no", "most": 0.1, "met": False}})
  shown = testing.Page(gpu_page.page(tmp_path, B16, {"norms": "it broke"}))
  text = [part for part in shown.text if part.strip()]
  best = "speed / timm compiled, each at its best batch"
  cost = "time for Dual PatchNorm (the same step again: -0.1%)"
  for goal in (
    ["MFU of B/16", "≥ 55%", "56.0%", "yes"],
    [best, "≥ 1.2", "1.25", "yes"],
    [cost, "≤ 1%", "+2.0%", "no"],
    ["float32", "2.0e-03", "1e-03", "no"],
    ["odd", "no", "1e-01", "no"],
    [slower, "900", "no"],  # not input-bound
    [row, "1,000", "yes"],
  ):
    places = [i for i, part in enumerate(text) if part == goal[0]]
    assert goal in [text[i : i + len(goal)] for i in places]
  assert "norms failed: it broke" in text
  used = (
    "2.00 GiB; XLA reserves 2.50 GiB here, and the most that was used was 3"
  )
  assert any(used in x for x in text)
  assert not any("Not all was measured alike" in x for x in text)

  (tmp_path / "peers_B16_16.json").unlink()  # its best may have been there
  page = testing.Page(gpu_page.page(tmp_path, B16, {}))
  text = [part for part in page.text if part.strip()]
  place = text.index(best)
  assert text[place : place + 3] == [best, "≥ 1.2", "not measured"]


def test_what_changed_in_between(tmp_path, write):
  write("loading", {"crop": {}}, code=2, device="A")
  for name in ("memory_B16_8", "norms_00"):
    write(name, {}, device="A")
  shown = testing.Page(gpu_page.page(tmp_path, B16, {}))
  alike = "Not all was measured alike: loading with code 2; "
  assert f"{alike}memory_B16_8, norms_00 with code 1." in shown.text


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

  def fails(report):
    report.run("fails", "fails")

  def hangs(report):
    report.run("hangs", "hangs")

  def late(report):
    report.run("late", "hangs")

  modules = tmp_path / "modules"
  modules.mkdir()
  (modules / "fails.py").write_text("raise SystemExit('no such kernel')")
  (modules / "hangs.py").write_text("import time; time.sleep(600)")
  monkeypatch.setenv("PYTHONPATH", str(modules))
  found = {f.__name__: f for f in (fails, hangs, late)}
  monkeypatch.setattr(gpu_report, "PARTS", gpu_report.PARTS | found)
  return list(found)


def test_goals_that_nothing_measured(tmp_path):
  shown = testing.Page(gpu_page.page(tmp_path, B16, {}))
  text = [part for part in shown.text if part.strip()]
  assert text.count("not measured") == 3


def test_a_trial_and_a_report_do_not_share_a_folder(tmp_path, monkeypatch):
  monkeypatch.setattr(gpu_report, "PARTS", {})

  def ends(*words):
    with pytest.raises(SystemExit) as end:
      gpu_report.main(["--out", str(tmp_path), *words])
    return str(end.value.code)

  assert ends("--tiny") == ends("--tiny") == "False"
  assert re.search("^Error: .*holds the results of .'tiny': True", ends())
  (tmp_path / "report.json").rename(tmp_path / "another.json")
  assert "holds the results of nothing that says so" in ends("--tiny")


@pytest.mark.slow
def test_it_goes_on(parts, tmp_path, capsys):
  out = tmp_path / "out"
  args = ["--tiny", "--out", str(out), "--only"]
  with pytest.raises(SystemExit) as end:
    gpu_report.main([*args, "versions"])
  assert end.value.code == 0
  with pytest.raises(SystemExit) as end:
    gpu_report.main([*args, *parts, "--minutes", "0.2"])
  assert end.value.code == 1
  failures = json.loads((out / "failures.json").read_text())
  assert failures["fails"].startswith("no such kernel")
  assert failures["hangs"].startswith("stopped: the time was over")
  assert failures["late"] == "not run: 0.2 minutes are over."
  assert json.loads((out / "versions.json").read_text())["results"]["jax"]
  page = (out / "report.html").read_text()
  assert "fails failed: no such kernel" in page
  assert "FAILED, the others go on" in capsys.readouterr().out


@pytest.mark.slow
def test_a_step_in_small(tmp_path):
  report = gpu_report.main
  args = ["--tiny", "--out", str(tmp_path), "--only", "step"]
  with pytest.raises(SystemExit) as end:
    report(args)
  assert end.value.code == 0
  assert "mu/16 32px batch 4 float32" in (tmp_path / "report.html").read_text()
  with pytest.raises(SystemExit) as end:  # nothing is measured twice
    report([*args, "--minutes", "0"])
  assert end.value.code == 0
