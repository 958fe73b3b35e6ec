"""The report goes on without what fails, and says what it has measured."""

import argparse
import json
import re

import pytest

from dpn.scripts import bench_step, gpu_report, testing
from dpn.scripts.bench import gpu_page, step_peers

B16 = step_peers.Setting("B/16", dtype="bfloat16")


def _figures(speed, **more):
  return {"img_per_sec": speed, "step_secs_p50": 1 / speed, **more}


@pytest.fixture(name="write")
def _write(tmp_path):
  def write(name, results, code=1):
    kept = {"code": code, "results": results}
    (tmp_path / f"{name}.json").write_text(json.dumps(kept))

  return write


def test_goals_by_hand(tmp_path, write):
  def write_steps(name, row, **figures):
    write(name, {row: {"figures": figures}})

  row = bench_step.name_of(B16)
  slower = row.replace("batch 16", "batch 8")
  memory = {"peak_memory_gb": 3.0, "reserved_gb": 2.5}
  fast, slow = (_figures(v, mfu=v * 5.6e-4, **memory) for v in (1000, 900))
  write_steps("step_B16_8", slower, ours=slow)
  write_steps("step_B16_16", row, ours=fast)
  write_steps("peers_B16_8", slower, timm=_figures(800))
  write_steps("peers_B16_16", row, timm=_figures(780))
  norm = lambda ratio: {"ours": 1.0, "fastest": 1.0, "ratio": ratio}
  arms = {"stem_ln=dpn": norm(1.02), "pre-LN again": norm(0.999)}
  write("stem", arms)
  write("memory", {"a": 2**30, "b": 2**30})
  write("loading", {"crop": {"ours": 950.0}})
  write("numbers", {"float32": {"found": 2e-3, "most": 1e-3}})
  shown = testing.Page(gpu_page.page(tmp_path, B16, {"norms": "it broke"}))
  text = [part for part in shown.text if part.strip()]
  best = "speed / timm compiled, each at its best batch"
  cost = "time for Dual PatchNorm (the same step again: -0.1%)"
  for goal in (
    ["MFU of B/16", "≥ 55%", "56.0%", "yes"],
    [best, "≥ 1.2", "1.25", "yes"],
    [cost, "≤ 1%", "+2.0%", "no"],
    ["float32", "2.0e-03", "1e-03", "no"],
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
  assert not any("The code changed" in x for x in text)


def test_code_that_changed_in_between(tmp_path, write):
  write("loading", {"crop": {}}, code=2)
  for name in ("memory", "stem"):
    write(name, {})
  shown = testing.Page(gpu_page.page(tmp_path, B16, {}))
  assert any(
    "these groups to another: loading; memory, stem." in x for x in shown.text
  )


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
  versions = gpu_report.versions
  found = {f.__name__: f for f in (fails, versions, hangs, late)}
  monkeypatch.setattr(gpu_report, "PARTS", found)
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


def test_a_fault_that_was_not_survived_is_a_failure(tmp_path, write):
  args = argparse.Namespace(out=tmp_path, tiny=True, minutes=1)
  outcomes = {"sigterm": "survived", "sigkill": "NOT survived: step 7 of 9"}
  write("faults", outcomes)
  with pytest.raises(
    RuntimeError, match=r"^sigkill NOT survived: step 7 of 9$"
  ):
    gpu_report.faults(gpu_report.Report(args))
  assert not (tmp_path / "faults.json").exists()


@pytest.mark.slow
def test_it_goes_on(parts, tmp_path, capsys):
  out = tmp_path / "out"
  args = ["--tiny", "--out", str(out), "--minutes", "0.4", "--only", *parts]
  with pytest.raises(SystemExit) as end:
    gpu_report.main(args)
  assert end.value.code == 1
  failures = json.loads((out / "failures.json").read_text())
  assert failures["fails"].startswith("no such kernel")
  assert failures["hangs"].startswith("stopped: the time was over")
  assert failures["late"] == "not run: 0.4 minutes are over."
  assert "versions" not in failures
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
  with pytest.raises(SystemExit):  # nothing is measured twice
    report([*args, "--minutes", "0"])
