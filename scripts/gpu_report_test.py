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


def test_goals_by_hand(tmp_path):
  def write(name, rows):
    content = {row: {"figures": figures} for row, figures in rows.items()}
    (tmp_path / f"{name}.json").write_text(json.dumps(content))

  row = bench_step.name_of(B16)
  slower = row.replace("batch 16", "batch 8")
  memory = {"peak_memory_gb": 3.0}
  write(
    "step_B16",
    {
      slower: {"ours": _figures(900, mfu=0.5, **memory)},
      row: {"ours": _figures(1000, mfu=0.56, **memory)},
    },
  )
  write("peers_B16", {row: {"timm": _figures(800)}})
  dpn = row.replace("none", "dpn")
  write("stem", {row: {"ours": _figures(1000)}, dpn: {"ours": _figures(980)}})
  (tmp_path / "memory.json").write_text(json.dumps({"a": 2**30, "b": 2**30}))
  loading = {"crop": {"ours": 950.0}}
  (tmp_path / "loading.json").write_text(json.dumps(loading))
  shown = testing.Page(gpu_page.page(tmp_path, B16, {"norms": "it broke"}))
  text = [part for part in shown.text if part.strip()]
  for goal in (
    ["MFU of B/16", "≥ 55%", "56.0%", "yes"],
    ["speed / timm compiled", "≥ 1.2", "1.25", "yes"],
    ["time for Dual PatchNorm", "≤ 1%", "+2.0%", "no"],
    [slower, "900", "no"],  # not input-bound
    [row, "1,000", "yes"],
  ):
    places = [i for i, part in enumerate(text) if part == goal[0]]
    assert goal in [text[i : i + len(goal)] for i in places]
  assert "norms failed: it broke" in text
  assert any("2.00 GiB; the most that was used: 3.00 GiB" in x for x in text)


@pytest.fixture
def parts(monkeypatch):
  """Replaces the parts by one that works and some that do not."""

  def fails(report):
    report.run("fails", "-c", "raise SystemExit('no such kernel')")

  def hangs(report):
    report.run("hangs", "-c", "import time; time.sleep(600)")

  def late(report):
    report.run("late", "-c", "")

  environment = gpu_report.environment
  found = {f.__name__: f for f in (fails, environment, hangs, late)}
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
  (tmp_path / "report.json").unlink()
  assert "holds the results of nothing that says so" in ends("--tiny")


def test_a_fault_that_was_not_survived_is_a_failure(tmp_path):
  args = argparse.Namespace(out=tmp_path, tiny=True, minutes=1)
  outcomes = {"sigterm": "survived", "sigkill": "NOT survived: step 7 of 9"}
  (tmp_path / "faults.json").write_text(json.dumps(outcomes))
  with pytest.raises(
    RuntimeError, match=r"^sigkill NOT survived: step 7 of 9$"
  ):
    gpu_report.faults(gpu_report.Report(args))
  assert not (tmp_path / "faults.json").exists()


@pytest.mark.slow
def test_it_goes_on(parts, tmp_path, capsys):
  args = ["--tiny", "--out", str(tmp_path), "--minutes", "0.2", "--only"]
  with pytest.raises(SystemExit) as end:
    gpu_report.main([*args, *parts])
  assert end.value.code == 1
  failures = json.loads((tmp_path / "failures.json").read_text())
  assert failures["fails"].startswith("no such kernel")
  assert failures["hangs"].startswith("stopped: the time was over")
  assert failures["late"] == "not run: 0.2 minutes are over."
  assert "environment" not in failures
  assert json.loads((tmp_path / "environment.json").read_text())["jax"]
  page = (tmp_path / "report.html").read_text()
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
