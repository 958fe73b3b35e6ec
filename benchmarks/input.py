"""Compares our images per second with tf.data's, Pillow's and OpenCV's.

  python -m benchmarks.input [--tasks crop,eval] [--json FILE]

The peers are tf.data as big_vision uses it, and Pillow in torch's workers as
timm uses it (for label maps OpenCV, as in MMSegmentation). They need the extra
`bench`; a peer that cannot run says why. All read the same files: JPEGs cut
from scikit-learn's two photographs, or those in --data. The task "prepared"
reads what `scripts.prepare_data --max_side 512 --quality 95 --restart` makes of
them, and FFCV's published number for such a data set is printed. Each
measurement is a new process; they take turns. Medians are reported, with the
ratio to the fastest peer and the time that one thread of ours spends on each
stage. Keep the machine idle otherwise.
"""

import collections
import functools
import importlib.util
import os
import pathlib
import tempfile
import time
from collections.abc import Sequence

import jax
import numpy as np
import pandas as pd
import sklearn
from PIL import Image, ImageFilter, ImageOps

from benchmarks import harness, input_peers
from dpn import input_pipeline
from dpn.input_pipeline import pp, sources
from dpn.input_pipeline.pp import lazy_image, ops_image
from dpn.input_pipeline.sources import rewrite

COLUMNS = {
  "rate": ("images/s", "{:.0f}"),
  "cpu_ms": ("CPU ms per image", "{:.3f}"),
  "peak_mb": ("MB", "{:.0f}"),
}
# From docs/benchmarks.rst of github.com/libffcv/ffcv; not measured here.
_FFCV = (
  "FFCV publishes 31,278 images/s with 96 vCPUs (AWS p3dn.24xlarge), 326 for "
  "each, for crops to 224 of JPEGs of at most 512 pixels a side, quality 90, "
  "in memory; ours here, for each core: {:.0f}"
)


def write_images(folder: str, task: str, seed: int = 0):
  """Writes a task's files: JPEGs of about 80 kB, or arrays for "tiny".

  Images of "large", "prepared" and "segment" are larger; those of "segment"
  have label maps of 25 classes.
  """
  rng = np.random.default_rng(seed)
  _, count, rows, cols, _ = input_peers.TASKS[task]
  photos = []
  for name in ("china.jpg", "flower.jpg"):
    photo = Image.fromarray(sklearn.datasets.load_sample_image(name))
    factor = 1.05 * max(rows / photo.height, cols / photo.width)
    photos.append(ImageOps.scale(photo, max(1, factor)))

  def cut(i):
    photo = photos[i % 2]
    left = int(rng.integers(photo.width - cols + 1))
    top = int(rng.integers(photo.height - rows + 1))
    return photo.crop((left, top, left + cols, top + rows))

  images = map(cut, range(count))
  if task == "tiny":
    arrays = np.stack([np.asarray(image) for image in images])
    np.savez(os.path.join(folder, "tiny.npz"), **{"train/image": arrays})
    return
  segment = task == "segment"
  where = "images/train" if segment else "train/photo"
  for i, image in enumerate(images):
    _save(image, f"{folder}/{where}/{i}.jpg", quality=95, subsampling="4:2:0")
    if segment:
      smooth = image.convert("L").filter(ImageFilter.GaussianBlur(8))
      ids = smooth.point(lambda level: level // 10 * 6)
      _save(ids, f"{folder}/annotations/train/{i}.png")
  if not segment:
    derive(task, folder, folder)


def _save(image, path, **kw):
  pathlib.Path(path).parent.mkdir(parents=True, exist_ok=True)
  image.save(path, **kw)


def derive(task: str, source: str, folder: str):
  """Rewrites a folder's JPEGs as `scripts.prepare_data` would.

  The task "prepared" reads the result. Other tasks get copies with restart
  markers in addition, if Numba, which makes these, is installed.
  """
  prepared = task == "prepared"
  if not prepared and importlib.util.find_spec("numba") is None:
    return
  made = rewrite.Rewrite(
    **(input_peers.PREPARED if prepared else {"restart": True})
  )
  target = pathlib.Path(folder, "" if prepared else "marked", "train", "photo")
  target.mkdir(parents=True, exist_ok=True)
  for path in sorted(pathlib.Path(source, "train", "photo").iterdir()):
    (target / path.name).write_bytes(made.image(path.read_bytes()))


def stages(task: str, folder: str) -> dict[str, float]:
  """Returns the milliseconds per image that one thread spends on each stage.

  A crop decodes only what it needs, so decoding is also timed in augmentation.
  """
  source = sources.make(input_peers.source(task, folder))
  spec, *_, count = input_peers.TASKS[task]
  first, _, rest = spec.partition("|")
  decode = ops_image.decode() if first == "decode" else lambda record, _: record
  augment = pp.make(rest if first == "decode" else spec)
  rng = np.random.default_rng(0)
  spent = collections.Counter()

  def timed(stage, fn, *args):
    begin = time.perf_counter()
    result = fn(*args)
    spent[stage] += time.perf_counter() - begin
    return result

  batch = None
  for i in range(count):
    record = timed("read", source.__getitem__, i % len(source))
    example = timed("decode", decode, record, rng)
    image, before = example["image"], spent["decode"]
    if isinstance(image, lazy_image.LazyImage):
      image.cut = functools.partial(timed, "decode", image.cut)
    image = timed("augment", augment, example, rng)["image"]
    spent["augment"] -= spent["decode"] - before
    if batch is None:
      batch = np.full((count, *image.shape), 0, image.dtype)
    timed("batch", np.copyto, batch[i], image)
  put = lambda x: jax.device_put(x).block_until_ready()
  put(batch)  # The first one initializes JAX.
  timed("to device", put, batch)
  return {stage: 1000 * secs / count for stage, secs in spent.items()}


def report(task: str, folder: str, repeats: int, secs: float) -> dict:
  """Prints a task's numbers: medians of measurements that each take `secs`.

  Returns:
    Images per second of ours and of the peers, and the `ratio` of ours to the
    fastest peer, if there is any.
  """
  measure = lambda who: harness.worker(
    input_peers.__name__,
    {"who": who, "task": task, "folder": folder, "secs": secs},
  )
  found = harness.in_turn(measure, input_peers.ARMS, repeats)
  rows = {
    who: rounds[-1]
    if "error" in rounds[-1]
    else dict(pd.DataFrame(rounds).median())
    for who, rounds in found.items()
  }
  print(f"{task}: {input_peers.TASKS[task].pp}")
  print(harness.table(rows, COLUMNS).to_string(na_rep="-"))
  rows.pop(input_peers.WITHOUT_FAST)
  marked = rows.pop(input_peers.RESTART).get("rate")
  rates = harness.compare(rows, "rate")
  if "ratio" in rates:
    print(f"ratio to the fastest peer {rates['ratio']:.2f}")
    if marked:
      rates[input_peers.RESTART] = marked
      rates["ratio_restart"] = marked * rates["ratio"] / rates["ours"]
      print(f"with restart markers {rates['ratio_restart']:.2f}")
  if task == "prepared" and "ours" in rates:
    print(_FFCV.format(rates["ours"] / input_pipeline.num_cores()))
  parts = [f"{name} {ms:.3f}" for name, ms in stages(task, folder).items()]
  print("one thread, ms per image:", ", ".join(parts), flush=True)
  return rates


def main(argv: Sequence[str] | None = None):
  """Runs the command line; see the module."""
  parser = harness.parser(__doc__)
  add = parser.add_argument
  add("--tasks", default=",".join(input_peers.TASKS), help="%(default)s")
  add("--data", help="folder with train/photo/*.jpg")
  add("--repeats", type=int, default=3, help="measurements of each (3)")
  add("--secs", type=float, default=4.0, help="seconds of each (4)")
  args = parser.parse_args(argv)
  print(
    f"{input_pipeline.num_cores()} cores, load average before "
    f"{os.getloadavg()[0]:.1f}"
  )
  results = {}
  for task in args.tasks.split(","):
    with tempfile.TemporaryDirectory() as folder:
      if args.data and task not in ("segment", "tiny"):
        if task != "prepared":
          os.symlink(os.path.abspath(f"{args.data}/train"), f"{folder}/train")
        derive(task, args.data, folder)
      else:
        write_images(folder, task)
      results[task] = report(task, folder, args.repeats, args.secs)
  harness.write_json(args.json, results)


if __name__ == "__main__":
  main()
