"""What runs say of their arms is what a calculation by hand says."""

import pathlib

import pandas as pd
import pytest

from dpn.scripts import conftest as testing
from dpn.scripts.results import own_runs, run_files, runs

TABLE = {"recipe": "photos", "arch": "S/16"}


def _frame(root, results, **config):
  """Returns runs that end with `results`, {arm: values by seed}."""
  for arm, values in results.items():
    for seed, value in enumerate(values):
      testing.write_run(
        root / f"{arm}-{seed}",
        stem_ln=arm,
        seed=seed,
        config=config,
        results={"val/prec@1": value, "val/loss": 1 - value},
      )
  return runs.frame(run_files.find([str(root)]))


def test_sentences_have_the_interval_and_whether_it_contains_0(tmp_path):
  results = {
    "none": [0.50, 0.50, 0.50],
    "dpn": [0.51, 0.52, 0.53],  # +2, s = 1: 4.303 / √3 = 2.484
    "post": [0.52, 0.52, 0.53],  # +2.33, s = 0.577: 1.434
  }
  models, wrong = own_runs.models(_frame(tmp_path, results, table=TABLE))
  assert wrong == []
  assert own_runs.in_words(models) == [
    "post − base (photos S/16, val/prec@1): +2.33 points; 95% interval +0.90 "
    "to +3.77, does not contain 0 (3 seeds, paired).",
    "dpn − base (photos S/16, val/prec@1): +2.00 points; 95% interval −0.48 "
    "to +4.48, contains 0 (3 seeds, paired).",
    # p = 0.0742 and 0.0198; Holm doubles the smaller one, to 0.0396.
    "Intervals without 0: 1 of 2; after correction for their number (Holm, "
    "5%): 1.",
  ]


def test_one_and_two_seeds_have_no_interval(tmp_path):
  results = {"none": [0.5, 0.5], "dpn": [0.51, 0.53], "pre": [0.25]}
  models, _ = own_runs.models(_frame(tmp_path, results, table=TABLE))
  assert own_runs.in_words(models) == [
    "dpn − base (photos S/16, val/prec@1): +2.00 points; +1.00 and +3.00 by "
    "seed, too few for an interval (2 seeds, paired).",
    "pre − base (photos S/16, val/prec@1): −25.00 points; no interval without "
    "more seeds (1 seed, unpaired).",
  ]


def test_runs_without_a_table_are_called_by_what_they_differ_in(tmp_path):
  for lr in (0.1, 0.2):
    arms = {"none": [0.5], "dpn": [0.6]}
    frame = _frame(tmp_path / f"{lr}", arms, lr=lr)
  frame = runs.frame(run_files.find([str(tmp_path)]))
  assert set(frame.title) == {"own, lr = 0.1", "own, lr = 0.2"}
  models, _ = own_runs.models(frame)
  assert [list(model.arms) for model in models] == 2 * [["base", "dpn"]]


def test_what_else_arms_differ_in_is_said_beside_their_difference(tmp_path):
  for arm, lr, steps, name in (
    ("none", 1e-3, 1000, "folder:cats"),
    ("dpn", 1e-2, 2000, "folder:dogs"),
    ("pre", 1e-3, 1000, "folder:cats"),
  ):
    more = {"lr": lr, "total_steps": steps, "input": {"data": {"name": name}}}
    frame = _frame(tmp_path, {arm: [0.5, 0.5]}, table=TABLE, **more)
  models, _ = own_runs.models(frame)
  differ = "in: input.data.name, lr, total_steps."
  dpn, pre = own_runs.in_words(models)
  assert dpn.endswith(f"(2 seeds, paired). The arms also differ {differ}")
  assert pre.endswith("(2 seeds, paired).")
  [shown] = own_runs.side_by_side(models)
  assert [note for note in shown.notes if "differs from" in note] == [
    f"photos S/16: base also differs from dpn {differ}"
  ]


@pytest.mark.parametrize("name", ["camvid", "digits", "lit", "when_dpn_helps"])
def test_the_arms_of_our_studies_differ_in_nothing_else(name):
  archive = pathlib.Path(__file__).parents[2] / f"docs/results/{name}.jsonl"
  models, wrong = own_runs.models(runs.frame(run_files.find([str(archive)])))
  assert wrong == []
  other = {"none_standardized": ["input.pp"]}  # its pixels
  expected = [{k: other[k] for k in other if k in m.arms} for m in models]
  assert models != []
  assert [model.also for model in models] == expected


def test_all_metrics_have_differences(tmp_path):
  results = {"none": [0.50, 0.50, 0.50], "dpn": [0.51, 0.52, 0.53]}
  models, _ = own_runs.models(_frame(tmp_path, results, table=TABLE))
  means, differences = own_runs.everything(models)
  assert [*means.frame] == ["metric", "base", "dpn"]
  assert [*differences.frame] == ["metric", "dpn"]
  assert [str(x) for x in differences.frame.iloc[1]] == [
    "val/loss",
    "−0.0200 ± 0.0248 (n=3, paired)",
  ]


def test_a_run_without_its_last_evaluation_does_not_decide_the_metric(tmp_path):
  kw = {"table": TABLE, "results": {"val/loss": 0.5}}
  testing.write_run(tmp_path / "a", **kw)
  frame = _frame(tmp_path / "b", {"dpn": [0.5, 0.75]}, table=TABLE)
  frame = runs.frame(run_files.find([str(tmp_path)]))
  [model], wrong = own_runs.models(frame)
  assert (model.headline, wrong) == (("val/prec@1",), [])
  assert model.arms["dpn"]["val/prec@1"].values.to_list() == [50, 75]
  assert "val/prec@1" not in model.arms["base"]


def test_arms_by_their_names_in_configs():
  given = ("none", "dpn", "patch_stats", "tract", "none+patch_stats")
  assert [*map(own_runs.arm_name, given)] == [
    *("base", "dpn", "dpn+patch_stats", "tract", "none+patch_stats")
  ]


def test_a_wrong_baseline_or_metric_is_named(tmp_path):
  frame = _frame(tmp_path, {"none": [0.5]})
  with pytest.raises(ValueError, match=r"Unknown baseline 'bsae'.*'base'"):
    own_runs.models(frame, "bsae")
  with pytest.raises(ValueError, match="Unknown final metric 'val/los'"):
    own_runs.models(frame, metric="val/los")


def test_nothing_is_compared_with_another_than_the_baseline(tmp_path):
  _frame(tmp_path, {"none": [0.5], "dpn": [0.6], "pre": [0.7]}, table=TABLE)
  _frame(tmp_path / "again", {"pre": [0.9]}, table=TABLE)
  frame = runs.frame(run_files.find([str(tmp_path)]))
  [model], [wrong] = own_runs.models(frame, baseline="pre")
  assert (list(model.arms), model.baseline) == (["base", "dpn"], None)
  assert wrong.startswith("photos S/16: pre: ")
  _frame(tmp_path / "other", {"none": [0.5], "dpn": [0.6]})
  frame = runs.frame(run_files.find([str(tmp_path / "other")]))
  pre = frame.arm.replace("dpn", "pre")
  both = pd.concat([frame, frame.assign(title="B/16", arm=pre)])
  found, _ = own_runs.models(both, baseline="dpn")
  assert [model.baseline for model in found] == [None, "dpn"]


def test_an_arm_without_the_metric_has_no_number(tmp_path):
  _frame(tmp_path, {"none": [0.5]}, table=TABLE)
  kw = {"stem_ln": "pre", "table": TABLE, "results": {"val/loss": 0.5}}
  testing.write_run(tmp_path / "pre", **kw)
  models, wrong = own_runs.models(runs.frame(run_files.find([str(tmp_path)])))
  [table] = own_runs.side_by_side(models)
  assert wrong == []
  assert [str(cell) for cell in table.frame["val/prec@1 [%]"]] == [
    *("50.00 (n=1)", "–")
  ]
