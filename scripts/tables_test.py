"""Tables of made-up runs with known means and intervals."""

import csv
import importlib
import io
import json

import pytest

from dpn.configs import ade20k, augreg_i1k, lape_deit
from dpn.scripts import conftest as testing
from dpn.scripts import tables
from dpn.scripts.results import paper, run_files, runs
from dpn.scripts.results import tables as laid_out

METRIC = "val/prec@1"


def _write(root, stem_ln, seed, value, *, complete=True, **kw):
  """Writes a run as configs/augreg_i1k.py's."""
  variant, metric = kw.pop("variant", "B/16"), kw.pop("metric", METRIC)
  arg = f"variant={variant},stem_ln={stem_ln}"
  config = augreg_i1k.get_config(arg).to_dict() | {"seed": seed, **kw}
  rows = [{"step": 10, "loss": 2.0}, {"step": 20, "loss": 1.0, metric: value}]
  folder = root / f"{stem_ln}-{variant.replace('/', '')}-s{seed}"
  testing.write_run(
    folder, config=config, rows=rows, seconds=5.0 if complete else None
  )
  return folder


@pytest.fixture
def root(tmp_path):
  accuracies = [(0.80, 0.81), (0.81, 0.83), (0.82, 0.84)]
  for seed, (none, dpn) in enumerate(accuracies):
    _write(tmp_path, "none", seed, none)
    _write(tmp_path, "dpn", seed, dpn)
  return tmp_path


def _build(root, name="1_left", metric=None):
  frame = runs.frame(run_files.find([str(root)]))
  table, wrong = laid_out.build(name, frame, metric)
  if wrong:
    raise ValueError(wrong)
  return table


def _row(table, *keys):
  """Returns a row as column → text."""
  rows = table.frame.map(str).to_dict("records")
  (row,) = [r for r in rows if tuple(r.values())[: len(keys)] == keys]
  return row


def _cells(root, *keys, name="1_left", metric=None):
  return _row(_build(root, name, metric), *keys)


B16 = ("AugReg", "B/16")


def test_a_row_is_the_papers_and_ours(root):
  assert _cells(root, *B16) == {
    "recipe": "AugReg",
    "arch": "B/16",
    # 4.303 · 0.06 and 4.303 · 0.09: standard errors of three runs.
    "paper base": "80.4 ± 0.26",
    "paper DPN": "81.1 ± 0.39",
    "paper DPN − base": "+0.7",
    # s = 1 point: 4.303 · 1 / √3 = 2.48; 81, 83, 84: s = 1.528, so 3.79.
    "ours base": "81.00 ± 2.48 (n=3)",
    "ours DPN": "82.67 ± 3.79 (n=3)",
    # 1, 2 and 2 points: s = 0.577, so 1.43.
    "ours DPN − base": "+1.67 ± 1.43 (n=3, paired)",
  }


def test_both_sides_have_the_measure_that_the_header_names(root, capsys):
  def shown(*argv):
    tables.main([str(root), "--table", "1_left", *argv])
    _, _, header, *rows = capsys.readouterr().out.splitlines()
    return header, " ".join(rows)

  header, rows = shown("--interval", "sem", "--format", "md")
  assert header.count("± SEM") == 5  # not of the paper's differences
  # s / √3 of 1 and 1.528, and of the differences 0.577.
  for cell in (" 80.4 ± 0.06", "81.00 ± 0.58", "82.67 ± 0.88", "+1.67 ± 0.33"):
    assert cell in rows
  assert "19 of the 20 are values that a standard error" in rows
  header, rows = shown("--format", "md")
  assert header.count("± 95% CI") == 5
  assert "4.30 times as wide as printed" in rows
  # 1.67 ± 1.43: better, whatever stands after ±.
  assert " **82.67 ± 3.79 (n=3)**" in rows
  assert rows.count("**") == 2
  assert "* 82.67 ± 3.79 (n=3)" in shown()[1]


def test_finished_runs_that_fill_no_cell_are_named_with_the_reason(root):
  _write(root, "pre", 0, 0.5)
  _write(root / "m", "pre", 1, 0.5, complete=False)
  _write(root, "none", 7, 0.5, table={"runlocal": True})
  vtab = {"recipe": "VTAB, res 384", "arch": "B/16", "arm": "dpn"}
  vtab["task"] = "DTD"
  _write(root, "dpn", 8, 0.5, metric="test/prec@1", table=vtab)
  own = {"recipe": "mine", "arch": "B/16", "arm": "base"}
  _write(root, "none", 9, 2.5, metric="val/mse", table=own)
  (note,) = [n for n in _build(root).notes if n.startswith("Finished runs")]
  assert f"{root}/dpn-B16-s8: of VTAB, res 384 (see Table 3)" in note
  assert f"{root}/none-B16-s7: of two steps (runlocal)" in note
  assert f"{root}/none-B16-s9: of mine, whose result is no accuracy" in note
  assert f"{root}/pre-B16-s0: of other arms (see Table 6)" in note
  assert "s1" not in note
  assert _row(_build(root, "3"), "B/16, res 384", "DTD")["ours DPN"]
  (note,) = [n for n in _build(root, "3").notes if n.startswith("Finished")]
  assert "and 3 more: of AugReg (see Table 1 (left), Table 6, Figure 1)" in note


def test_cells_never_run_say_so():
  for name in [k for k, v in paper.TABLES.items() if v.rows]:
    ours = laid_out.build(name, runs.frame([]))[0].frame.filter(like="ours")
    assert ours.size
    assert (ours == "not run").all(axis=None)


def test_incomplete_runs_are_marked_and_not_counted(root):
  _write(root, "dpn", 3, 0.1, complete=False)
  _write(root, "dpn", 0, 0.1, complete=False, variant="S/16")
  table = _build(root)
  assert _row(table, *B16)["ours DPN"] == "82.67 ± 3.79 (n=3, 1 incomplete)"
  assert _row(table, "AugReg", "S/16")["ours DPN"] == "incomplete (1 run)"
  assert _row(table, "AugReg", "S/16")["ours DPN − base"] == "incomplete"
  assert any("dpn-B16-s3" in note for note in table.notes)


def test_two_results_of_a_seed_are_refused(root):
  _write(root / "again", "dpn", 0, 0.5)
  with pytest.raises(ValueError, match=r"the same seed \(0\).*: 50, 81\."):
    _build(root)


def test_settings_do_not_mix_in_a_mean(root, capsys):
  # Most runs of the row have lr=0.001: the other one is an arm of its own.
  _write(root, "dpn", 3, 0.81, lr=0.5)
  table = _build(root)
  assert _row(table, *B16)["ours DPN"] == "82.67 ± 3.79 (n=3)"
  [note] = [n for n in table.notes if n.startswith("Finished runs")]
  assert f"{root}/dpn-B16-s3: of other arms" in note
  for seed in (4, 5, 6, 7, 8):
    _write(root, "dpn", seed, 0.81, lr=0.5)
  message = r"Table 1 \(left\): .*more than the seed \(lr: 0\.001, 0"
  with pytest.raises(SystemExit, match=message):
    tables.main([str(root), "--table", "1_left", "6"])
  shown = capsys.readouterr().out
  assert "in conflict, left out" in shown
  assert "80.0" in shown  # of base
  assert "Table 6" in shown


def test_a_missing_metric_lists_what_there_is(root):
  with pytest.raises(ValueError, match=f"Did you mean '{METRIC}'.*loss"):
    _build(root, metric="val/prec1")
  assert _cells(root, *B16, metric="loss")["ours DPN"] == "1.00 ± 0.00 (n=3)"


def _measured(root, stem_ln, **metrics):
  """Writes a run of a recipe of one's own with these results."""
  kw = {"stem_ln": stem_ln, "table": {"recipe": "photos", "arch": "S"}}
  testing.write_run(root / stem_ln, results=metrics, **kw)


def test_both_sides_of_a_difference_are_of_one_metric(tmp_path):
  # Each one's first: 80% of val, 60% of test. Only test is of both.
  _measured(tmp_path, "none", **{"val/prec@1": 0.8, "test/prec@1": 0.5})
  _measured(tmp_path, "dpn", **{"test/prec@1": 0.6})
  cells = _cells(tmp_path, "photos", "S")
  assert cells["ours base"] == "50.00 (n=1)"
  assert cells["ours DPN − base"] == "+10.00 (n=1, paired)"


def test_different_metrics_are_not_subtracted(tmp_path):
  _measured(tmp_path, "none", **{"val/prec@1": 0.5})
  _measured(tmp_path, "dpn", **{"test/prec@1": 0.6})
  cells = _cells(tmp_path, "photos", "S")
  assert cells["ours base"] == "50.00 (n=1)"
  assert cells["ours DPN"] == "60.00 (n=1)"
  gain = "test/prec@1 and val/prec@1 do not compare"
  assert cells["ours DPN − base"] == gain
  row = _build(tmp_path).frame.iloc[-1]
  assert not any(getattr(cell, "best", False) for cell in row)


def test_runs_that_were_trained_further_are_named(root, capsys):
  file = root / "dpn-B16-s1" / "done.json"
  done = json.loads(file.read_text()) | {"extended_at": [1000, 1500]}
  file.write_text(json.dumps(done))
  named = "at once: " + f"{root}/dpn-B16-s1 (done at step 1,000, 1,500)."
  assert [n for n in _build(root).notes if n.startswith("Trained further")] == [
    "Trained further after they had been done, so not with the schedule of as "
    f"many steps {named}"
  ]
  archive = root / "all.jsonl"
  tables.main([str(root), "--format", "archive", "-o", str(archive)])
  capsys.readouterr()
  for given, path in ((root, root), (archive, root.name)):
    tables.main([str(given), "--table", "runs", "--format", "md"])
    out = capsys.readouterr().out
    assert f"{path}/dpn-B16-s1 (done at step 1,000, 1,500)." in out


def test_what_is_no_fraction_is_no_accuracy(root):
  _write(root, "dpn", 3, 81.1)
  with pytest.raises(ValueError, match=r"81\.1, expected a fraction"):
    _build(root)


def test_table_6_is_relative_to_dpn(root):
  for seed, value in enumerate((0.80, 0.82, 0.83)):
    _write(root, "pre", seed, value)
  table = _build(root, "6")
  assert _row(table, "pre")["B/16 paper"] == "−0.1"
  assert _row(table, "pre")["B/16 ours"] == "−1.00 ± 0.00 (n=3, paired)"
  assert _row(table, "dpn: top-1")["B/16 ours"] == "82.67 ± 3.79 (n=3)"
  assert _row(table, "base")["B/16 paper"] == "−0.7"
  assert _row(table, "base")["B/16 ours"] == "−1.67 ± 1.43 (n=3, paired)"
  assert _row(table, "post")["B/32 ours"] == "not run"


def test_a_single_run_has_the_interval_of_its_probe(tmp_path):
  name = "fewshot/imagenet_25shot"

  def write(stem_ln, seed, shift):
    found = {name: 0.52 + shift}
    for i, value in enumerate((0.51, 0.52, 0.53)):
      found[f"{name}-seed-{i}"] = value + shift
    table = {"recipe": "I21k", "arch": "S/32", "steps": 93000}
    kw = {"stem_ln": stem_ln, "seed": seed, "table": table}
    testing.write_run(tmp_path / f"{stem_ln}{seed}", results=found, **kw)

  def cells():
    return _cells(tmp_path, "93000", "S/32", name="1_right")

  write("none", 0, 0.0)
  assert cells()["ours base"] == "52.00 ± 2.48 (n=1, ± of 3 probes)"
  write("dpn", 0, 0.01)
  paired = "+1.00 ± 0.00 (n=1, ± of 3 probes, paired)"
  assert cells()["ours DPN − base"] == paired
  # Three seeds of runs are not paired with three seeds of a probe.
  write("dpn", 1, 0.02)
  write("dpn", 2, 0.03)
  assert cells()["ours DPN − base"] == "+2.00 (n=1, unpaired)"


def test_vtab_has_means_of_groups_once_all_tasks_are_run(tmp_path):
  tasks = paper.TABLES["3"].groups["Specialized"]
  for i, task in enumerate(tasks):
    for seed in range(2):
      table = {"recipe": "VTAB", "arch": "B/32", "task": task}
      found = {"test/prec@1": 0.1 * (i + 1) + 0.02 * seed}
      kw = {"seed": seed, "table": table, "results": found}
      testing.write_run(tmp_path / f"{task}-{seed}", **kw)
  table = _build(tmp_path, "3")
  # 10, 20, 30, 40 with seed 0 and 2 more with seed 1.
  group = _row(table, "B/32", "mean of Specialized")
  assert group["ours base"] == "26.00 (n=2: 25.00, 27.00)"
  assert group["paper base"] == "80.5"  # (77.9 + 94.8 + 78.2 + 71.2) / 4
  every = _row(table, "B/32", "mean of all 19 tasks")["ours base"]
  assert every.startswith("incomplete")
  assert _row(table, "B/16", "mean of Natural")["ours base"] == "not run"


def test_of_candidates_only_the_selected_ones_count(tmp_path):
  def write(lr):
    table = {"recipe": "VTAB", "arch": "B/16", "task": "DTD"}
    testing.write_run(
      tmp_path / f"lr{lr}",
      config={"lr": lr, "table": table | {"candidate": f"lr={lr}"}},
      results={"minival/prec@1": 0.5},
    )

  def ours():
    return _cells(tmp_path, "B/16", "DTD", name="3")["ours base"]

  write(0.1)
  assert ours() == "1 candidate, none selected yet"
  write(0.2)
  assert ours() == "2 candidates, none selected yet"
  choices = {"DTD": {"candidate": "lr=0.2", "runs": ["lr0.2"]}}
  selection = {"metric": "minival/prec@1", "cells": choices}
  (tmp_path / "selection.json").write_text(json.dumps(selection))
  assert ours() == "selected, not tested yet"
  row = {"step": 1, "test/prec@1": 0.625}
  (tmp_path / "lr0.2" / "test.json").write_text(json.dumps(row))
  assert ours() == "62.50 (n=1)"


def test_a_single_candidate_that_was_tested_counts(tmp_path):
  table = {"recipe": "VTAB", "arch": "B/16", "task": "DTD", "candidate": "lr=1"}
  for seed, value in enumerate((0.5, 0.75)):
    kw = {"seed": seed, "table": table, "results": {"test/prec@1": value}}
    testing.write_run(tmp_path / f"s{seed}", **kw)
  ours = _cells(tmp_path, "B/16", "DTD", name="3")["ours base"]
  assert ours == "62.50 (n=2: 50.00, 75.00)"
  natural = _row(_build(tmp_path, "3"), "B/16", "mean of Natural")
  assert natural["ours base"] == "incomplete: 1 of 7 tasks"


@pytest.mark.parametrize(
  ("name", "row", "key", "value"),
  [
    ("1_right", {"steps": 930000, "arch": "B/16"}, "dpn", 78.4),
    ("2_left", {"steps": 220000, "arch": "L/16"}, "base", 77.3),
    ("2_right", {"resolution": 384, "arch": "B/32"}, "dpn", 81.6),
    ("3", {"arch": "B/16", "arm": "dpn"}, "CIFAR-100", 51.4),
    ("4", {"arch": "L/16", "pretrain_steps": 220000}, "base_ci", 0.11),
    ("5", {"train_fraction": "1/16"}, "dpn_ci", 0.21),
    ("6", {"arm": "pre"}, "B/32", -2.6),
    ("7", {"arch": "B/32", "setting": "+ augmentation"}, "base", 48.3),
    ("lape", {"arch": "S/16", "epochs": 100}, "lape", 69.49),
    ("lape_joins", {"posemb": "sincos1d"}, "lape,share=True", 72.22),
    ("lape_norms", {}, "lape,norm=standardize_scalar", 72.49),
    ("dtn_norms", {"arch": "S*"}, "switchable", 81.0),
  ],
)
def test_published_numbers(name, row, key, value):
  rows = paper.TABLES[name].rows
  found = [r for r in rows if row.items() <= r.items()]
  assert found[0][key] == value


def test_table_5_is_of_b16(tmp_path):
  for variant in ("B/16", "S/16"):
    config = ade20k.get_config(
      f"init=x,stem_ln=none,variant={variant}"
    ).to_dict()
    results = {"val/miou": 0.25 if variant == "B/16" else 0.125}
    testing.write_run(tmp_path / variant[0], config=config, results=results)
  table = _build(tmp_path, "5")
  assert _row(table, "1")["ours base"] == "25.00 (n=1)"
  assert any("S: of arch S/16" in note for note in table.notes)


def test_csv_has_a_field_for_every_number(root, capsys):
  tables.main([str(root), "--table", "1_left", "--format", "csv"])
  rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
  row = next(r for r in rows if (r["recipe"], r["arch"]) == B16)
  assert float(row["ours DPN"]) == pytest.approx(82.667, abs=1e-3)
  assert float(row["ours DPN ci"]) == pytest.approx(3.795, abs=1e-2)
  assert (row["ours DPN n"], row["ours DPN − base note"]) == ("3", "paired")
  assert float(row["paper base ci"]) == pytest.approx(4.303 * 0.06, abs=1e-3)
  assert row["ours DPN marked"] == "yes"
  assert "ours base marked" not in row
  assert rows[0]["ours base"] == "not run"


def test_no_cell_is_a_formula(root, capsys):
  table = {"recipe": "=1+1", "arch": "@x", "arm": "base"}
  rows = [{"step": 1, "val/prec@1": 0.5, "-b": -1.0}]
  testing.write_run(root / "x", config={"table": table}, rows=rows, seconds=1.0)
  tables.main([str(root), "--table", "1_left", "--format", "csv"])
  rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
  assert (rows[-1]["recipe"], rows[-1]["arch"]) == ("'=1+1", "'@x")
  tables.main([str(root), "--format", "long"])
  rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
  values = {r["metric"]: r["value"] for r in rows if r["arch"] == "'@x"}
  assert values == {"val/prec@1": "0.5", "'-b": "-1.0"}  # numbers stay numbers


def test_formats_hold_the_same_numbers(root, tmp_path, capsys):
  for form in ("text", "md", "html"):
    tables.main([str(root), "--table", "1_left", "6", "--format", form])
    out = capsys.readouterr().out
    assert out.count("82.67 ± 3.79 (n=3)") == 2
    assert "not run" in out
    assert "arXiv 2302.01327, Table 6" in out
  path = tmp_path / "x" / "all.md"
  tables.main([str(root), "-o", str(path), "--format", "md", "--table", "all"])
  text = path.read_text("utf-8")
  shown = [k for k, v in paper.TABLES.items() if v.rows]
  assert text.count("### ") == len(shown)


def test_without_a_name_the_tables_hold_what_was_run(root, capsys):
  for seed in range(3):
    _write(root, "pre", seed, 0.79 + seed / 100)
  tables.main([str(root), "--format", "md"])
  out = capsys.readouterr().out
  assert "not run" not in out
  titles = [line[4:] for line in out.splitlines() if line.startswith("### ")]
  assert [title.partition(":")[0] for title in titles] == [
    *("AugReg B/16", "Table 1 (left)", "Table 6")
  ]
  arms = [line.split("|")[1].strip() for line in out.splitlines()[2:7]]
  assert arms[2:] == ["base (ViT)", "dpn (Dual PatchNorm)", "pre"]
  # 1, 2, 2 points and −1, −1, −1.
  assert "+1.67 ± 1.43 (n=3, paired)" in out
  assert (
    "pre − base (AugReg B/16, val/prec@1): −1.00 points; 95% interval −1.00 to "
    "−1.00, does not contain 0 (3 seeds, paired)."
  ) in out


def test_of_what_was_not_finished_there_is_a_table_too(root, capsys):
  _write(root / "more", "none", 0, 0.5, complete=False, variant="S/16")
  tables.main([str(root / "more")])
  assert "incomplete (1 run)" in capsys.readouterr().out
  _write(root / "trial", "none", 7, 0.5, table={"runlocal": True})
  with pytest.raises(SystemExit, match=r"nothing to show.* two steps"):
    tables.main([str(root / "trial")])


def test_the_long_table_has_a_row_for_every_number(root, capsys):
  for option in (["--table", "6"], ["--baseline", "dpn"]):
    with pytest.raises(SystemExit, match=r"long has all logged.*Leave out"):
      tables.main([str(root), "--format", "long", *option])
  tables.main([str(root), "--format", "long"])
  rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
  columns = "run,recipe,arch,arm,seed,step,metric,value,commit,config_hash"
  assert ",".join(rows[0]) == f"{columns},complete"
  assert len(rows) == 6 * 3
  found = [
    row["value"]
    for row in rows
    if (row["arm"], row["seed"], row["metric"]) == ("dpn", "1", METRIC)
  ]
  assert found == ["0.83"]
  assert {row["commit"] for row in rows} == {"unknown"}
  assert len({row["config_hash"] for row in rows}) == 6
  # An arm is called after what tells it from all others, also shown alone.
  _write(root, "dpn", 3, 0.81, lr=0.5)
  arm = "dpn+lr=0.5"
  tables.main([str(root), "--format", "long", "--arms", arm])
  rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
  assert {row["arm"] for row in rows} == {arm}


def test_wrong_inputs_end_with_a_sentence(root, tmp_path):
  for argv, message in (
    ([str(tmp_path / "nowhere")], "nowhere is not a folder"),
    ([str(root), "--metric", "acc"], "Unknown final metric 'acc'"),
    ([str(root), "--table", "runs", "--baseline", "dnp"], "Unknown arm 'dnp'"),
    ([str(root), "--table", "zoo", "--metric", "x"], "metrics of their own"),
    ([str(root), "--table", "6", "--baseline", "dpn"], "of --table runs, or"),
  ):
    with pytest.raises(SystemExit, match=message):
      tables.main(argv)


def test_a_run_also_fills_the_cell_of_its_earlier_epoch(tmp_path):
  def write(join, at_100, at_300, epochs=300):
    config = lape_deit.get_config(f"posemb_join={join}")
    config.total_epochs = epochs
    rows = [
      {"step": step, METRIC: value}
      for step, value in ((995, at_100), (2000, 0.9), (3003, at_300))
    ]
    testing.write_run(
      *(tmp_path / f"{join}{epochs}",),
      config=config.to_dict(),
      rows=rows[: epochs // 100],
      seconds=1.0,
    )

  write("add", 0.5, 0.75)
  write("lape", 0.5625, 0.8125)
  table = _build(tmp_path, "lape")
  ours = lambda epochs: list(
    _row(_build(tmp_path, "lape"), "ImageNet-1k", "Ti/16", epochs).values()
  )[-3:]
  assert ours("100") == ["50.00 (n=1)", "56.25 (n=1)", "+6.25 (n=1, paired)"]
  assert ours("300") == ["75.00 (n=1)", "81.25 (n=1)", "+6.25 (n=1, paired)"]
  of_lape = {"table": {"recipe": "LaPE", "arch": "Ti/16", "arm": "add"}}
  rows = [{"step": 9, METRIC: 0.5}]
  testing.write_run(tmp_path / "own", config=of_lape, rows=rows, seconds=1.0)
  write("shared", 0.5, 0.8)
  table = _build(tmp_path, "lape")
  assert any("shared300: of other arms (see LaPE" in n for n in table.notes)
  joins = _build(tmp_path, "lape_joins")
  assert _row(joins, "shared")["learn ours"] == "+5.00 (n=1, paired)"
  assert _row(joins, "shared")["learn paper"] == "+0.46"
  write("add", 0.625, 0, epochs=100)  # a run of its own comes before
  assert ours("100") == ["62.50 (n=1)", "not run", "not run"]
  assert ours("300") == ["75.00 (n=1)", "81.25 (n=1)", "+6.25 (n=1, paired)"]


@pytest.mark.parametrize(
  ("table", "sweeps", "cells"),
  [
    ("1_left", ("augreg_i1k", "s16_plus_i1k", "deit_i1k", "finetune_i1k"), 20),
    ("1_right", ("augreg_i21k",), 20),
    ("3", ("vtab:tasks=DTD+KITTI-Dist",), 8),
    ("6", ("stem_ablation",), 50),
    ("7", ("sun397_scratch",), 4),
    ("figure_1", ("ln_placement",), 110),
    ("lape", ("lape_deit", "lape_cifar", "lape_cifar:data=cifar100"), 18),
    ("lape_joins", ("lape_deit:table=joins",), 15),
    ("lape_norms", ("lape_deit:table=norms",), 9),
    ("dtn_models", ("dtn_i1k:table=models",), 10),
    ("dtn_norms", ("dtn_i1k:table=norms",), 16),
  ],
)
def test_the_sweeps_fill_the_papers_cells(table, sweeps, cells):
  made = []
  for sweep in sweeps:
    name, _, arg = sweep.partition(":")
    module = importlib.import_module(f"dpn.configs.{name}")
    for arm in module.sweep(arg or None):
      config = module.get_config(arm["arg"]).to_dict()
      made.append(runs.Run(arm["name"], config))
  filled = laid_out.sort_runs(table, runs.frame(made)).arms
  assert len(filled) == cells
  places = {place for place, _ in filled}
  if archs := paper.TABLES[table].archs:
    assert places == {(arch,) for arch in archs}
  else:
    known, _ = laid_out.build(table, runs.frame([]))
    keys = known.frame.iloc[:, : known.keys]
    assert places <= set(keys.itertuples(index=False, name=None))
