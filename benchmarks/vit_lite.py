"""Trains ViT-Lite-7/4 on CIFAR-10 with its authors' code and with ours.

  git clone https://github.com/SHI-Labs/Compact-Transformers
  python -m benchmarks.vit_lite --authors Compact-Transformers \
    --torch_python ~/vit_lite/bin/python --data_dir DIR --out runs/vit_lite

Is our training sound? Both sides read the same JPEG files. One side uses the
authors' model, loss, optimizer, schedule, augmentation and data loader (arXiv
2104.05704; timm's for the most part), the other side ours. The same command
continues where it stopped: a run whose rows are in --results is done, whichever
machine it ran on. docs/results/vit_lite.md has settings and results.

The authors' code needs timm 0.4.12, Pillow below 10 and PyYAML beside PyTorch
and torchvision. It runs without a GPU, see without_cuda.py.
"""

import argparse
import csv
import dataclasses
import itertools
import json
import math
import pathlib
import shutil
import subprocess
import sys

import pandas as pd

from dpn import atomic, metrics
from dpn.input_pipeline import sources
from dpn.scripts.jobs import arms
from dpn.scripts.results import aggregate

BATCH, PUBLISHED_EPOCHS, MIXED_EPOCHS = 128, 300, 175
LOSSES = 40  # rows of ours in an epoch, each a mean over its steps
WITHOUT_CUDA = pathlib.Path(__file__).with_name("without_cuda.py")


def write_images(name: str, data_dir: str | None, folder: pathlib.Path):
  """Writes the JPEG files of a data set to folder/<split>/<class>/."""
  for split in ("train", "test"):
    data = {"name": name, "split": split, "data_dir": data_dir}
    source = sources.make(data)
    for i in range(len(source)):
      example = source[i]
      path = folder / split / f"{example['label']}" / f"{i:05d}.jpg"
      path.parent.mkdir(parents=True, exist_ok=True)
      path.write_bytes(example["image"])


def train_theirs(args: argparse.Namespace, seed: int, folder: pathlib.Path):
  """Runs the authors' train.py with their recipe, except for its length.

  It cannot resume exactly, so it starts over.
  """
  shutil.rmtree(folder, ignore_errors=True)
  repo = pathlib.Path(args.authors).expanduser()
  python = pathlib.Path(args.torch_python).expanduser()
  flags = {
    "config": repo / "configs/datasets/cifar10.yml",
    "model": "vit_7_4_32",
    "dataset": "folder",
    "val-split": "test",
    "epochs": args.epochs,
    "warmup-epochs": 0,
    "cooldown-epochs": 0,
    "mixup-off-epoch": _mixed_epochs(args.epochs),
    "seed": seed,
    "workers": 1,
    "output": folder.parent,
    "experiment": folder.name,
  }
  command = [python, WITHOUT_CUDA, repo / "train.py", "--no-prefetcher"]
  command += [f"--{name}={value}" for name, value in flags.items()]
  subprocess.run([*command, args.out / "images"], check=True)


def train_ours(args: argparse.Namespace, seed: int, folder: pathlib.Path):
  """Trains configs/lape_cifar.py for as many epochs as the authors' code."""
  images = args.out.absolute() / "images"
  per_epoch = sum(1 for _ in (images / "train").glob("*/*")) / BATCH
  total = round(args.epochs * per_epoch)
  flags = {
    "config": f"configs/lape_cifar.py:seed={seed},data=folder:{images}",
    "workdir": folder,
    "config.total_epochs": args.epochs,
    "config.mixup.until_steps": round(_mixed_epochs(args.epochs) * per_epoch),
    "config.schedule.warmup_epochs": 0,
    "config.schedule.warmup_start": 0.0,
    "config.schedule.hold_epochs": 0,
    "config.log_training_steps": math.ceil(per_epoch / LOSSES),
    "config.evals.test.log_percent": math.ceil(total / args.epochs) / total,
  }
  command = [sys.executable, *arms.TRAINER]
  command += [f"--{name}={value}" for name, value in flags.items()]
  subprocess.run(command, check=True)


def _mixed_epochs(epochs: int) -> int:
  """Returns how many epochs mix images, in the recipe's proportion."""
  return round(epochs * MIXED_EPOCHS / PUBLISHED_EPOCHS)


def read_theirs(folder: pathlib.Path) -> list[dict]:
  """Returns the mean training loss and test accuracy [%] of each epoch."""
  with open(folder / "summary.csv") as f:
    return [
      {
        "epoch": int(row["epoch"]) + 1,
        "training_loss": float(row["train_loss"]),
        "accuracy": float(row["eval_top1"]),
      }
      for row in csv.DictReader(f)
    ]


def read_ours(folder: pathlib.Path) -> list[dict]:
  """Returns the same as `read_theirs` from one of our runs."""
  epochs, losses = [], []
  for row in metrics.read(str(folder / metrics.METRICS)):
    losses += [row["loss"]] if "loss" in row else []
    if "test/prec@1" in row:
      loss = sum(losses) / len(losses)
      accuracy = 100 * row["test/prec@1"]
      epochs.append({"training_loss": loss, "accuracy": accuracy})
      losses = []
  return [{"epoch": i + 1, **row} for i, row in enumerate(epochs)]


CODES = {
  "authors": (train_theirs, read_theirs),
  "ours": (train_ours, read_ours),
}


def is_done(read, folder: pathlib.Path, epochs: int) -> bool:
  """Returns whether a run has results for all its epochs."""
  try:
    return len(read(folder)) == epochs
  except (FileNotFoundError, TypeError, ValueError):
    return False


def train(args: argparse.Namespace, code: str, seed: int) -> list[dict]:
  """Trains one seed with one code, if it is not done; returns its epochs."""
  images = args.out / "images"
  if not (images / "written").exists():
    write_images(args.data, args.data_dir, images)
    (images / "written").touch()
  train_with, read = CODES[code]
  folder = args.out / f"{code}-{args.epochs}epochs-s{seed}"
  if not is_done(read, folder, args.epochs):
    try:
      train_with(args, seed, folder)
    except subprocess.CalledProcessError:
      sys.exit(f"Error: {folder.name} failed; its own message is above.")
  return read(folder)


def read_rows(path: pathlib.Path) -> list[dict]:
  """Returns the epochs of all finished runs."""
  lines = path.read_text().splitlines() if path.exists() else []
  return [*map(json.loads, lines)]


def add_run(path: pathlib.Path, run: dict, epochs: list[dict]):
  """Adds a finished run to the file."""
  rows = [*read_rows(path), *(run | epoch for epoch in epochs)]
  lines = "".join(json.dumps(row) + "\n" for row in rows)
  atomic.write(str(path), lines.encode())


def table(rows: list[dict]) -> str:
  """Returns means over seeds with 95% intervals, and differences, by epoch."""
  cells = {}
  for epoch, group in pd.DataFrame(rows).groupby("epoch"):
    for name, digits in (("training_loss", 3), ("accuracy", 2)):
      codes = {
        code: runs.set_index("seed")[name]
        for code, runs in group.groupby("code")
      }
      shown = {code: aggregate.estimate(runs) for code, runs in codes.items()}
      if len(codes) == len(CODES):
        shown["difference"] = aggregate.welch(codes["ours"], codes["authors"])
      for column, value in shown.items():
        text = str(dataclasses.replace(value, digits=digits))
        cells[epoch, f"{name}, {column}"] = text
  by_epoch = pd.Series(cells).unstack().rename_axis("epoch")
  return by_epoch[list(dict.fromkeys(key[1] for key in cells))].to_markdown()


def main():
  args, parser = _arguments()
  if not (args.out or args.results):
    parser.error("--out or --results must be given.")
  path = args.results or args.out / "vit_lite.jsonl"
  done = {(row["seed"], row["code"], row["epochs"]) for row in read_rows(path)}
  wanted = itertools.product(range(args.seeds), args.codes, [args.epochs])
  missing = [run for run in wanted if run not in done]
  if missing and not (args.authors and args.torch_python and args.out):
    parser.error(
      f"{path} lacks {missing}. To train them, give --authors, --torch_python "
      "and --out."
    )
  for seed, code, epochs in missing:
    run = {"code": code, "epochs": epochs, "seed": seed}
    add_run(path, run, train(args, code, seed))
  print(table([r for r in read_rows(path) if r["epochs"] == args.epochs]))


def _arguments():
  parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
  add = parser.add_argument
  add("--authors", help="folder of their code")
  add("--torch_python", help="runs their code")
  add("--data", default="cifar10", help="TFDS name")
  add("--data_dir", help="where TFDS has it")
  add("--out", type=pathlib.Path, help="folder of the runs")
  help_ = "file of finished runs, which grows; OUT/vit_lite.jsonl by default"
  add("--results", type=pathlib.Path, help=help_)
  kw = {"choices": CODES, "default": [*CODES], "help": "which to train"}
  add("--codes", nargs="+", **kw)
  add("--epochs", type=int, default=5)
  add("--seeds", type=int, default=3)
  return parser.parse_args(), parser


if __name__ == "__main__":
  main()
