"""Measures images per second of our input against what people use instead.

  python -m scripts.bench_input [--tasks crop,eval] [--json FILE]

The peers are tf.data as big_vision uses it, and Pillow in torch's workers as
timm does; they come from the extra `bench`, and those not installed are left
out. All read the same files: JPEGs cut from scikit-learn's two photographs, or
those in --data. Each measurement runs in a new process, in turn, several
times; reported are medians, the ratio to the fastest peer, and where a single
thread of ours spends its time; where the extra `fast` is installed, also ours
without it. Let the machine do nothing else meanwhile.
"""

import argparse
import collections
import functools
import importlib.util
import json
import multiprocessing
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence

import numpy as np
from PIL import Image
from sklearn import datasets

import input_pipeline
from scripts.bench import input_peers

# Preprocessing by task, split where decoding ends, and (rows, cols) of images.
_TAIL = "|value_range(-1, 1)"
_CROP = "inception_crop(224)|flip_lr"
TASKS = {
  "crop": (f"decode|{_CROP}{_TAIL}", (375, 500)),
  "randaug": (f"decode|{_CROP}|randaug(2, 15){_TAIL}", (375, 500)),
  "eval": (f"decode|resize_small(256)|central_crop(224){_TAIL}", (375, 500)),
  "tiny": (
    f"pad_to_shape((40, 40, 3), where='both')|random_crop(32)|flip_lr{_TAIL}",
    (32, 32),
  ),
  "large": (f"decode|{_CROP}{_TAIL}", (1500, 2000)),
}
BATCH_SIZE = 128
_COUNTS = {"tiny": 20_000, "large": 60}
OURS, OPENCV = "ours", "without fast"
_FAST = "nvidia.nvimgcodec"


def write_images(folder: str, task: str, seed: int = 0):
  """Writes what a task reads: JPEGs of about 110 kB, or arrays for "tiny".

  Args:
    folder: where; JPEGs go to `train/photo/`.
    task: a name in TASKS.
    seed: decides where the photographs are cut.
  """
  rng = np.random.default_rng(seed)
  rows, cols = TASKS[task][1]
  names = ("china.jpg", "flower.jpg")
  photos = [
    _enlarge(Image.fromarray(datasets.load_sample_image(name)), rows, cols)
    for name in names
  ]
  cut = lambda photo: _random_cut(photo, rows, cols, rng)
  count = _COUNTS.get(task, 400)
  if task == "tiny":
    images = np.stack([np.asarray(cut(photos[i % 2])) for i in range(count)])
    np.savez(os.path.join(folder, "tiny.npz"), **{"train/image": images})
    return
  path = os.path.join(folder, "train", "photo")
  os.makedirs(path)
  for i in range(count):
    image = cut(photos[i % 2])
    image.save(os.path.join(path, f"{i}.jpg"), quality=95, subsampling="4:2:0")


def _enlarge(photo, rows, cols):
  """Returns the photo, larger where there is nothing to cut from."""
  factor = max(1.05 * rows / photo.size[1], 1.05 * cols / photo.size[0])
  if factor <= 1:
    return photo
  size = [int(side * factor) for side in photo.size]
  return photo.resize(size, Image.Resampling.BICUBIC)


def _random_cut(photo, rows, cols, rng):
  left = int(rng.integers(photo.size[0] - cols + 1))
  top = int(rng.integers(photo.size[1] - rows + 1))
  return photo.crop((left, top, left + cols, top + rows))


def _source(task: str, folder: str) -> dict[str, str]:
  name = f"arrays:{folder}/tiny.npz" if task == "tiny" else f"folder:{folder}"
  return {"name": name, "split": "train"}


def _ours(task: str, folder: str) -> Iterator[np.ndarray]:
  from input_pipeline import pipeline

  data = pipeline.training(
    {
      "data": _source(task, folder),
      "batch_size": BATCH_SIZE,
      "pp": f"{TASKS[task][0]}|keep('image')",
    },
    seed=0,
  )
  return (batch["image"] for batch in data.batches())


def _theirs(peer: str, task: str, folder: str) -> Iterator[np.ndarray]:
  files, images = [], None
  if task == "tiny":
    images = np.load(os.path.join(folder, "tiny.npz"))["train/image"]
  else:
    root = os.path.join(folder, "train", "photo")
    files = [entry.path for entry in os.scandir(root)]
  return input_peers.PEERS[peer](task, files, images, BATCH_SIZE)


def measure(who: str, task: str, folder: str, secs: float) -> dict[str, float]:
  """Returns images per second, CPU time per image, and peak memory.

  CPU time depends less on what else the machine does. Memory is the process's
  own, without its workers'.
  """
  if who == OPENCV:
    sys.modules[_FAST] = None  # Importing it fails.
  ours = who in (OURS, OPENCV)
  batches = _ours(task, folder) if ours else _theirs(who, task, folder)
  for _ in range(3):
    batch = next(batches)
  shape = (BATCH_SIZE, *([32] * 2 if task == "tiny" else [224] * 2), 3)
  if batch.shape != shape or batch.dtype != np.float32:
    raise ValueError(f"{who} made {batch.dtype} {batch.shape} for {task}.")
  count, begin, cpu_secs = 0, time.perf_counter(), _cpu_secs()
  while (elapsed := time.perf_counter() - begin) < secs:
    next(batches)
    count += BATCH_SIZE
  return {
    "rate": count / elapsed,
    "cpu_ms": 1000 * (_cpu_secs() - cpu_secs) / count,
    "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
  }


def _cpu_secs() -> float:
  """Returns the CPU time of this process and its workers so far."""
  import psutil

  workers = sum(
    sum(psutil.Process(child.pid).cpu_times()[:2])
    for child in multiprocessing.active_children()
  )
  return time.process_time() + workers


def stages(task: str, folder: str) -> dict[str, float]:
  """Returns the milliseconds per image that one thread spends on each stage.

  Decoding is what the augmentation asks for: part of the image, if it can be.
  """
  import jax

  from input_pipeline import pp, sources
  from input_pipeline.pp import lazy_image, ops_image

  source = sources.make(_source(task, folder))
  first, _, rest = TASKS[task][0].partition("|")
  decode = ops_image.decode() if first == "decode" else lambda record, _: record
  augment = pp.make(rest if first == "decode" else TASKS[task][0])
  rng = np.random.default_rng(0)
  spent = collections.Counter()

  def timed(stage, fn, *args):
    begin = time.perf_counter()
    result = fn(*args)
    spent[stage] += time.perf_counter() - begin
    return result

  batch = None
  for i in range(BATCH_SIZE):
    record = timed("read", source.__getitem__, i % len(source))
    example = timed("decode", decode, record, rng)
    image, before = example["image"], spent["decode"]
    if isinstance(image, lazy_image.LazyImage):
      image.cut = functools.partial(timed, "decode", image.cut)
    image = timed("augment", augment, example, rng)["image"]
    spent["augment"] -= spent["decode"] - before
    if batch is None:
      batch = np.full((BATCH_SIZE, *image.shape), 0, image.dtype)
    timed("batch", np.copyto, batch[i], image)
  put = lambda x: jax.device_put(x).block_until_ready()
  put(batch)  # The first starts JAX.
  timed("to device", put, batch)
  return {stage: 1000 * secs / BATCH_SIZE for stage, secs in spent.items()}


def _in_a_process(*args: str) -> dict[str, float] | None:
  """Returns what a measurement prints; None if it cannot be made."""
  done = subprocess.run(
    [sys.executable, "-m", "scripts.bench_input", "--measure", *args],
    capture_output=True,
    text=True,
    check=False,
  )
  last = done.stderr.strip().rpartition("\n")[2]
  if "ModuleNotFoundError" in last or "NotImplementedError" in last:
    return None
  if done.returncode:
    raise RuntimeError(f"{' '.join(args)} failed:\n{done.stderr}")
  return json.loads(done.stdout.strip().rpartition("\n")[2])


def compare(
  task: str, folder: str, repeats: int, secs: float
) -> tuple[dict[str, float], dict[str, dict[str, float]]]:
  """Measures everybody in turn.

  Args:
    task: a name in TASKS.
    folder: with its images.
    repeats: measurements of each.
    secs: length of a measurement.

  Returns:
    Median images per second by name, with the `ratio` of ours to the fastest
    peer, if there is any; and what else `measure` returns, by name.
  """
  found = collections.defaultdict(list)
  alone = (OURS, OPENCV) if _decodes_parts(task) else (OURS,)
  for _ in range(repeats):
    for who in (*alone, *input_peers.PEERS):
      result = _in_a_process(who, task, folder, str(secs))
      if result:
        found[who].append(result)
  medians = {
    who: {key: statistics.median(r[key] for r in rows) for key in rows[0]}
    for who, rows in found.items()
  }
  rates = {who: row["rate"] for who, row in medians.items() if who != OPENCV}
  peers = [rate for who, rate in rates.items() if who != OURS]
  if peers:
    rates["ratio"] = rates[OURS] / max(peers)
  return rates, medians


def _decodes_parts(task: str) -> bool:
  """Returns whether the extra `fast` is installed, and makes a difference."""
  try:
    return task != "tiny" and importlib.util.find_spec(_FAST) is not None
  except ModuleNotFoundError:  # Not even the package around it is there.
    return False


def report(task: str, folder: str, repeats: int, secs: float) -> dict:
  """Prints one task's numbers and returns its rates."""
  rates, medians = compare(task, folder, repeats, secs)
  print(f"{task}: {TASKS[task][0]}")
  for who, row in medians.items():
    print(
      f"  {who:<14}{row['rate']:>9.0f} images/s {row['cpu_ms']:>8.3f} CPU ms "
      f"per image {row['peak_mb']:>6.0f} MB"
    )
  if "ratio" in rates:
    print(f"  ratio to the fastest peer {rates['ratio']:.2f}")
  parts = stages(task, folder)
  print(
    "  one thread, ms per image: "
    + ", ".join(f"{stage} {ms:.3f}" for stage, ms in parts.items()),
    flush=True,
  )
  return rates


def main(argv: Sequence[str] | None = None):
  """Runs the command line; see the module."""
  parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
  parser.add_argument("--tasks", default=",".join(TASKS))
  parser.add_argument("--data", help="folder with train/photo/*.jpg")
  parser.add_argument("--json", help="file for the numbers")
  parser.add_argument("--repeats", type=int, default=3)
  parser.add_argument("--secs", type=float, default=4.0)
  parser.add_argument("--measure", nargs=4, help=argparse.SUPPRESS)
  args = parser.parse_args(argv)
  if args.measure:
    who, task, folder, secs = args.measure
    print(json.dumps(measure(who, task, folder, float(secs))), flush=True)
    os._exit(0)  # Some peers' workers do not end otherwise.
  print(
    f"{input_pipeline.num_cores()} cores, load average before "
    f"{os.getloadavg()[0]:.1f}, /dev/shm {_shm_mb():.0f} MB"
  )
  results = {}
  for task in args.tasks.split(","):
    with tempfile.TemporaryDirectory() as folder:
      if args.data and task != "tiny":
        folder = args.data
      else:
        write_images(folder, task)
      results[task] = report(task, folder, args.repeats, args.secs)
  print(f"/dev/shm after {_shm_mb():.0f} MB")
  if args.json:
    with open(args.json, "w") as file:
      json.dump(results, file, indent=2)


def _shm_mb() -> float:
  entries = os.scandir("/dev/shm") if os.path.isdir("/dev/shm") else ()
  return sum(entry.stat().st_size for entry in entries) / 1e6


if __name__ == "__main__":
  main()
