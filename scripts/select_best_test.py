"""The rule of VTAB, on cases made up by hand."""

import json
import pathlib

import pandas as pd
import pytest

from dpn.scripts import select_best
from dpn.scripts.jobs import arms as arms_lib

ROOT = pathlib.Path(__file__).parents[1]
METRIC = "minival/prec@1"


def _best(scores):
  return select_best.best(pd.DataFrame.from_dict(scores, orient="index"))


def test_the_highest_mean_wins_and_not_the_highest_run():
  scores = {
    "lr=1e-4": {0: 0.50, 1: 0.95, 2: 0.50},  # mean 0.65
    "lr=3e-4": {0: 0.70, 1: 0.71, 2: 0.72},  # mean 0.71
    "lr=1e-3": {0: 0.71, 1: 0.72, 2: 0.69},  # mean 0.7067
  }
  assert _best(scores) == "lr=3e-4"


def test_of_equals_the_first():
  # In floating point 0.1 + 0.2 + 0.3 differs from 0.3 + 0.2 + 0.1.
  scores = {
    "a": {0: 0.1, 1: 0.2, 2: 0.3},
    "b": {0: 0.3, 1: 0.2, 2: 0.1},
    "c": {0: 0.1, 1: 0.1, 2: 0.1},
  }
  assert _best(scores) == "a"
  assert _best(dict(reversed(scores.items()))) == "b"


def test_of_a_loss_the_lowest_mean_wins():
  scores = pd.DataFrame(
    {"a": {0: 0.5, 1: 0.9}, "b": {0: 0.6, 1: 0.6}, "c": {0: 0.9, 1: 0.9}}
  ).T  # means 0.7, 0.6 and 0.9
  assert select_best.best(scores, lowest=True) == "b"
  assert select_best.best(scores) == "c"


def test_which_metrics_are_better_lower():
  for metric in ("loss", "minival/loss", "val/z_loss", "training/loss_last"):
    assert select_best.lower_is_better(metric)
  for metric in ("minival/prec@1", "loss_study/prec@1", "val/miou"):
    assert not select_best.lower_is_better(metric)
  for metric in ("val/mse", "val/iou/glossy"):
    with pytest.raises(ValueError, match=f"more or less of {metric} is better"):
      select_best.lower_is_better(metric)


@pytest.mark.parametrize(
  ("scores", "message"),
  [
    ({"a": {0: 0.1, 1: 0.2}, "b": {0: 0.3}}, "Candidate b has no .* seed 1"),
    ({"a": {0: 0.1}, "b": {0: float("nan")}}, "Candidate b has no .* seed 0"),
  ],
)
def test_what_does_not_compare(scores, message):
  with pytest.raises(ValueError, match=message):
    _best(scores)


# Minival by task, learning rate and seed; 1e-3 wins DTD, 1e-4 wins Pets.
SCORES = {
  "DTD": {"1e-4": (0.4, 0.4), "3e-4": (0.6, 0.4), "1e-3": (0.5, 0.6)},
  "Pets": {"1e-4": (0.9, 0.9), "3e-4": (0.8, 0.9), "1e-3": (0.1, 0.9)},
}


@pytest.fixture
def out(tmp_path, monkeypatch):
  """A finished sweep of VTAB, written by hand."""
  monkeypatch.chdir(ROOT)
  config = "configs/vtab.py"
  arg = "tasks=DTD+Pets,variants=B/32,stems=dpn,seeds=2"
  arms = arms_lib.find(config, arg, str(tmp_path), overrides={"lr": "1"})
  assert len(arms) == 12
  arms_lib.write_index(config, arg, str(tmp_path), arms)
  for arm in arms:
    folder = tmp_path / arm.workdir
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    task, rate = arm.name.split("_")[0], arm.name.split("_lr")[1]
    metrics = {METRIC: SCORES[task][rate][arm.seed]}
    done = {"step": 2500, "metrics": metrics}
    (folder / "done.json").write_text(json.dumps(done))
  return tmp_path


def test_a_sweep(out, capsys):
  select_best.main([str(out)])
  selection = json.loads((out / "selection.json").read_text())
  assert selection["metric"] == METRIC
  dtd, pets = selection["cells"].values()
  assert (dtd["candidate"], pets["candidate"]) == ("lr=0.001", "lr=0.0001")
  assert dtd["mean"]["lr=0.0003"] == 0.5
  assert dtd["runs"] == ["DTD_dpn_B32_lr1e-3-s0", "DTD_dpn_B32_lr1e-3-s1"]
  printed = capsys.readouterr().out
  commands = [x for x in printed.splitlines() if x.startswith("python ")]
  # Each chosen run once, and no other.
  assert len(commands) == 4
  assert "task=DTD,variant=B/32,stem_ln=dpn,lr=1e-3," in commands[0]
  assert f"--checkpoint {out}/DTD_dpn_B32_lr1e-3-s0 --evals test" in commands[0]
  assert commands[0].endswith("test.json --config.lr=1")

  # What has been tested is not tested again.
  (out / "DTD_dpn_B32_lr1e-3-s0" / "test.json").write_text("{}")
  select_best.main([str(out)])
  assert capsys.readouterr().out.count("dpn.scripts.evaluate") == 3


def test_a_sweep_by_its_loss(out):
  loss = {"1e-4": 0.3, "3e-4": 0.2, "1e-3": 0.4}
  for file in out.glob("*/done.json"):
    rate = file.parent.name.split("_lr")[1].split("-s")[0]
    metrics = {"minival/loss": loss[rate], "minival/mse": 1.0}
    file.write_text(json.dumps({"step": 2500, "metrics": metrics}))
  for choice in select_best.choose(str(out), "minival/loss").values():
    assert choice["candidate"] == "lr=0.0003"
  with pytest.raises(ValueError, match="expected a loss"):
    select_best.choose(str(out), "minival/mse")


def test_a_candidate_that_diverged_is_not_chosen(out, capsys):
  for seed in (0, 1):
    folder = out / f"DTD_dpn_B32_lr1e-3-s{seed}"
    (folder / "done.json").unlink()
    (folder / "diverged.txt").write_text("loss = nan at step 20")
  select_best.main([str(out)])
  dtd, pets = select_best.choose(str(out), METRIC).values()
  assert (dtd["candidate"], pets["candidate"]) == ("lr=0.0003", "lr=0.0001")
  assert "lr=0.001: diverged" in capsys.readouterr().out
  for folder in out.glob("DTD_*-s1"):
    (folder / "diverged.txt").write_text("loss = nan at step 20")
  with pytest.raises(ValueError, match=r"DTD.*a run of each candidate diverge"):
    select_best.choose(str(out), METRIC)


def test_errors(out):
  other = out / "Pets_dpn_B32_lr3e-4-s0" / "config.json"
  other.write_text('{"total_steps": 25}')
  message = r"Pets.* differ in more than the seed \(total_steps"
  with pytest.raises(ValueError, match=message):
    select_best.choose(str(out), METRIC)
  other.write_text("{}")
  with pytest.raises(ValueError, match=r"Unknown final metric 'val/prec@1'"):
    select_best.choose(str(out), "val/prec@1")
  (out / "Pets_dpn_B32_lr3e-4-s1" / "done.json").unlink()
  with pytest.raises(
    ValueError, match=r"1 of 12 runs are not done: .*lr3e-4-s1"
  ):
    select_best.choose(str(out), METRIC)
  with pytest.raises(ValueError, match=r"sweep.json is missing"):
    select_best.choose(str(out / "nothing"), METRIC)
  arms = arms_lib.find("configs/digits.py", "", str(out / "digits"))
  arms_lib.write_index("configs/digits.py", "", str(out / "digits"), arms)
  with pytest.raises(ValueError, match=r"\.json is of gone.py, which is not"):
    select_best._check_trusted("gone.py", arms)
  with pytest.raises(ValueError, match="no candidates to choose from"):
    select_best.choose(str(out / "digits"), METRIC)
