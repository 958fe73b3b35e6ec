"""Our run, and a stand-in for theirs that writes what timm writes."""

import json
import pathlib
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from benchmarks import vit_lite
from dpn.scripts.jobs import arms

ROOT = pathlib.Path(__file__).parents[1]

# Mean loss and accuracy of two epochs, as timm writes them.
SUMMARY = """epoch,train_loss,eval_loss,eval_top1,eval_top5
0,2.25,2.1,21.5,70.0
1,2.0,1.9,30.5,75.0
"""
STAND_IN = f"""
import argparse, pathlib, torch
parser = argparse.ArgumentParser()
parser.add_argument("--output")
parser.add_argument("--experiment")
args, others = parser.parse_known_args()
assert torch.Tensor().cuda() is not None and "--mixup-off-epoch=1" in others
folder = pathlib.Path(args.output, args.experiment)
folder.mkdir()
(folder / "summary.csv").write_text({SUMMARY!r})
"""
TORCH = """
class Module:
  pass
class Tensor:
  pass
class cuda:
  is_available = staticmethod(lambda: False)
class nn:
  Module = Module
def full():
  pass
"""


@pytest.fixture(name="arguments")
def _arguments(tmp_path):
  rng = np.random.default_rng(0)
  for split, count in (("train", 26), ("test", 2)):
    for i in range(10):
      folder = tmp_path / "out" / "images" / split / str(i)
      folder.mkdir(parents=True)
      for j in range(count):
        image = rng.integers(0, 255, (32, 32, 3), np.uint8)
        Image.fromarray(image).save(folder / f"{j}.jpg")
  (tmp_path / "out" / "images" / "written").touch()
  (tmp_path / "train.py").write_text(STAND_IN)
  (tmp_path / "site").mkdir()
  (tmp_path / "site" / "torch.py").write_text(TORCH)
  return [
    f"--authors={tmp_path}",
    f"--torch_python={sys.executable}",
    f"--out={tmp_path / 'out'}",
    "--epochs=2",
    "--seeds=1",
  ]


def test_both_train_and_are_compared(arguments, tmp_path, monkeypatch, capsys):
  monkeypatch.setattr(sys, "argv", ["compare_vit_lite", *arguments])
  monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{tmp_path / 'site'}")
  run = subprocess.run

  def smaller(command, **kw):
    ours = [*arms.TRAINER][-1] in command
    return run(command + ["--config.model.variant=mu/4"] * ours, **kw)

  monkeypatch.setattr(subprocess, "run", smaller)
  vit_lite.main()
  lines = (tmp_path / "out" / "vit_lite.jsonl").read_text().splitlines()
  rows = [*map(json.loads, lines)]
  assert [row["epoch"] for row in rows] == [1, 2, 1, 2]
  assert [row["training_loss"] for row in rows[:2]] == [2.25, 2.0]
  assert [row["accuracy"] for row in rows[:2]] == [21.5, 30.5]
  for row in rows[2:]:
    assert row["accuracy"] in np.arange(0, 101, 5)
    assert 2 < row["training_loss"] < 4
  assert "21.5" in capsys.readouterr().out

  # What is done is not trained again; what was cut off is, and may fail.
  (tmp_path / "train.py").write_text("raise SystemExit('no GPU')")
  vit_lite.main()
  assert "30.5" in capsys.readouterr().out
  (tmp_path / "out" / "vit_lite.jsonl").unlink()
  summary = tmp_path / "out" / "authors-2epochs-s0" / "summary.csv"
  summary.write_text(SUMMARY[: SUMMARY.index(",1.9")])
  with pytest.raises(SystemExit, match="authors-2epochs-s0 failed"):
    vit_lite.main()


def write_results(path):
  accuracies = {"authors": [50.0, 52.0, 57.0], "ours": [52.0, 53.0, 54.0]}
  for code, values in accuracies.items():
    for seed, accuracy in enumerate(values):
      run = {"code": code, "epochs": 1, "seed": seed}
      epoch = {"epoch": 1, "training_loss": 2.0, "accuracy": accuracy}
      vit_lite.add_run(path, run, [epoch])


def test_results_alone_make_the_table(tmp_path, monkeypatch, capsys):
  path = tmp_path / "vit_lite.jsonl"
  write_results(path)
  command = ["compare_vit_lite", f"--results={path}", "--epochs=1"]
  monkeypatch.setattr(sys, "argv", command)
  vit_lite.main()
  # Variances of the means are 1/3 and 13/3, so that Welch's degrees of freedom
  # are 2.3059, and t(0.975) is 3.7994.
  assert "0.00 ± 8.21 (n=3, Welch)" in capsys.readouterr().out
  monkeypatch.setattr(sys, "argv", [*command, "--seeds=4"])
  with pytest.raises(SystemExit):
    vit_lite.main()
  assert "lacks [(3, 'authors', 1), (3, 'ours', 1)]" in capsys.readouterr().err
