"""The input pipelines that benchmarks.input compares.

Each function takes the name of a task and a folder that `input.write_images`
filled, and returns an endless iterator over batches of float32 images. These
are in [-1, 1], or for "segment" standardized and made with label maps. Each
function uses as many threads or processes as there are cores. The extra `bench`
has what the peers need. As a program, this module takes the arguments of
`measure` as JSON and prints its result.
"""

import dataclasses
import importlib
import json
import os
import random
import sys
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageEnhance, ImageOps

from benchmarks import segmentation_peer
from dpn import host_memory, input_pipeline


class Task(NamedTuple):
  """What to do with the images, how many there are, and their size."""

  pp: str
  count: int
  rows: int = 375
  cols: int = 500
  batch_size: int = 128


_RANGE = "|value_range(-1, 1)"
_CROP = "decode|inception_crop(224)|flip_lr"
TASKS = {
  "crop": Task(f"{_CROP}{_RANGE}", 400),
  "randaug": Task(f"{_CROP}|randaug(2, 15){_RANGE}", 400),
  "eval": Task(f"decode|resize_small(256)|central_crop(224){_RANGE}", 400),
  "tiny": Task(
    "pad_to_shape((40, 40, 3), where='both')|random_crop(32)|flip_lr" + _RANGE,
    *(20_000, 32, 32),
  ),
  "large": Task(f"{_CROP}{_RANGE}", 60, 1500, 2000),
  "prepared": Task(f"{_CROP}{_RANGE}", 200, 1500, 2000),  # before shrinking
  "segment": Task(
    "decode|decode_labels(150, inkey='annotation', reduce_zero_label=True)"
    "|random_resize_with_mask((2048, 512), (0.5, 2.0))"
    "|random_crop_with_mask(512, cat_max=0.75)|flip_with_mask"
    "|photometric_distortion|vgg_value_range|pad_to_shape((512, 512, 3))"
    "|pad_to_shape((512, 512), 255, key='labels')",
    *(400, 512, 683, 16),
  ),
}
# How scripts.prepare_data made the images of "prepared" for all arms.
PREPARED = {"max_side": 512, "quality": 95, "restart": True}
RANDAUG_LAYERS, RANDAUG_LEVEL = 2, 1.5
WITHOUT_FAST = "without fast"
RESTART = "restart markers"  # ours, on files that scripts.prepare_data rewrote


def measure(who: str, task: str, folder: str, secs: float) -> dict[str, float]:
  """Returns images per second, CPU time per image, and peak memory.

  CPU time depends less on the machine's other load. Memory is that of this
  process, without its workers.
  """
  batches = ARMS[who](task, folder)
  for _ in range(3):
    next(batches)
  count, begin, cpu_secs = 0, time.perf_counter(), _cpu_secs()
  while (elapsed := time.perf_counter() - begin) < secs:
    next(batches)
    count += TASKS[task].batch_size
  return {
    "rate": count / elapsed,
    "cpu_ms": 1000 * (_cpu_secs() - cpu_secs) / count,
    "peak_mb": host_memory.peak_bytes() / 2**20,
  }


def _cpu_secs() -> float:
  """Returns the CPU time of this process and its workers so far."""
  import psutil

  me = psutil.Process()
  workers = me.children(recursive=True)
  return sum(sum(process.cpu_times()[:2]) for process in (me, *workers))


def source(task: str, folder: str) -> dict[str, str]:
  """Returns the section `data` of our config for a task."""
  names = {"tiny": f"arrays:{folder}/tiny.npz", "segment": f"pairs:{folder}"}
  return {"name": names.get(task, f"folder:{folder}"), "split": "train"}


def files(task: str, folder: str) -> Sequence:
  """Returns the arrays of "tiny", and the paths of other tasks' images."""
  if task == "tiny":
    return np.load(os.path.join(folder, "tiny.npz"))["train/image"]
  images = "images/train" if task == "segment" else "train/photo"
  return [file.path for file in os.scandir(f"{folder}/{images}")]


def ours(task: str, folder: str) -> Iterator[np.ndarray]:
  """Returns batches of this codebase."""
  from dpn.input_pipeline import pipeline

  keep = "keep('image', 'labels')" if task == "segment" else "keep('image')"
  config = {
    "data": source(task, folder),
    "batch_size": TASKS[task].batch_size,
    "pp": f"{TASKS[task].pp}|{keep}",
  }
  batches = pipeline.training(config, seed=0).batches()
  return (batch["image"] for batch in batches)


def without_fast(task: str, folder: str) -> Iterator[np.ndarray]:
  """Returns our batches as if the extra `fast` were not installed."""
  importlib.import_module("nvidia.nvimgcodec")  # an error if it is not
  sys.modules["nvidia.nvimgcodec"] = None  # from now on importing it fails
  return ours(task, folder)


def with_markers(task: str, folder: str) -> Iterator[np.ndarray]:
  """Returns our batches of the same images with restart markers."""
  why_not = {
    "tiny": "not JPEGs",
    "segment": "resizing needs whole images",
    "prepared": "all files have them here",
  }
  if task in why_not:
    raise NotImplementedError(why_not[task])
  importlib.import_module("numba")  # without it there are no such copies
  return ours(task, os.path.join(folder, "marked"))


def tf_data(task: str, folder: str) -> Iterator[np.ndarray]:
  """Returns batches by tf.data, as big_vision makes them."""
  if task == "randaug":
    raise NotImplementedError("RandAugment: tensorflow_addons does not run")
  if task == "segment":
    raise NotImplementedError("big_vision has no such ops")
  import tensorflow as tf

  def random_crop(data):
    begin, size, _ = tf.image.sample_distorted_bounding_box(
      tf.image.extract_jpeg_shape(data),
      tf.zeros([0, 0, 4], tf.float32),
      area_range=(0.05, 1.0),
      aspect_ratio_range=(0.75, 1.33),
      min_object_covered=0,
      use_image_if_no_bounding_boxes=True,
    )
    window = tf.concat([begin[:2], size[:2]], 0)
    image = tf.image.decode_and_crop_jpeg(data, window, channels=3)
    image = tf.cast(tf.image.resize(image, (224, 224)), tf.uint8)
    return tf.image.random_flip_left_right(image)

  def evaluate(data):
    image = tf.image.decode_jpeg(data, channels=3)
    shape = tf.cast(tf.shape(image)[:2], tf.float32)
    small = tf.cast(tf.round(shape * 256.0 / tf.reduce_min(shape)), tf.int32)
    image = tf.cast(tf.image.resize(image, small, "area"), tf.uint8)
    top, left = (small[0] - 224) // 2, (small[1] - 224) // 2
    return tf.image.crop_to_bounding_box(image, top, left, 224, 224)

  def tiny(image):
    padded = tf.pad(image, [[4, 4], [4, 4], [0, 0]])
    cropped = tf.image.random_crop(padded, (32, 32, 3))
    return tf.image.random_flip_left_right(cropped)

  fn = {"eval": evaluate, "tiny": tiny}.get(task, random_crop)
  dataset = tf.data.Dataset.from_tensor_slices(files(task, folder))
  dataset = dataset.repeat().shuffle(1000)
  if task != "tiny":
    dataset = dataset.map(tf.io.read_file, tf.data.AUTOTUNE)
  dataset = dataset.map(
    lambda x: tf.cast(fn(x), tf.float32) / 127.5 - 1.0, tf.data.AUTOTUNE
  )
  dataset = dataset.batch(TASKS[task].batch_size, drop_remainder=True)
  return dataset.prefetch(tf.data.AUTOTUNE).as_numpy_iterator()


def pillow(task: str, folder: str) -> Iterator[np.ndarray]:
  """Returns batches by Pillow in torch's workers, as timm makes them.

  Batches of "segment" are made by OpenCV instead, as in MMSegmentation.
  """
  from torch.utils import data

  paths, segment = files(task, folder), task == "segment"
  peer = segmentation_peer.Examples if segment else PillowExamples
  examples = peer(task, paths)
  loader = data.DataLoader(
    examples,
    TASKS[task].batch_size,
    sampler=data.RandomSampler(examples, replacement=True, num_samples=10**9),
    num_workers=input_pipeline.num_cores(),
    drop_last=True,
  )
  return ((batch[0] if segment else batch).numpy() for batch in loader)


@dataclasses.dataclass
class PillowExamples:
  """A map-style data set for torch: index → image."""

  task: str
  examples: Sequence

  def __len__(self):
    return len(self.examples)

  def __getitem__(self, index: int) -> np.ndarray:
    example = self.examples[index]
    if self.task == "tiny":
      padded = np.pad(example, ((4, 4), (4, 4), (0, 0)))
      top, left = random.randrange(9), random.randrange(9)
      image = Image.fromarray(padded[top : top + 32, left : left + 32])
    else:
      image = Image.open(example).convert("RGB")
    if self.task == "eval":
      scale = 256 / min(image.size)
      image = ImageOps.scale(image, scale, Image.Resampling.BOX)
      left, top = ((side - 224) // 2 for side in image.size)
      image = image.crop((left, top, left + 224, top + 224))
    elif self.task != "tiny":
      box = _random_box(*image.size)
      image = image.resize((224, 224), Image.Resampling.BILINEAR, box)
    if self.task != "eval" and random.random() < 0.5:
      image = ImageOps.mirror(image)
    if self.task == "randaug":
      for augment in random.choices(RANDAUG, k=RANDAUG_LAYERS):
        image = augment(image)
    return np.asarray(image, np.float32) / 127.5 - 1


def _random_box(cols: int, rows: int) -> tuple[int, int, int, int]:
  """Returns a random (left, top, right, bottom), as torchvision draws it."""
  for _ in range(10):
    area = random.uniform(0.05, 1) * rows * cols
    aspect = np.exp(random.uniform(np.log(0.75), np.log(1.33)))
    width, height = round((area * aspect) ** 0.5), round((area / aspect) ** 0.5)
    if 0 < width <= cols and 0 < height <= rows:
      left = random.randrange(cols - width + 1)
      top = random.randrange(rows - height + 1)
      return left, top, left + width, top + height
  return 0, 0, cols, rows


def _affine(*matrix):
  return lambda image: image.transform(
    image.size, Image.Transform.AFFINE, matrix, fillcolor=(128, 128, 128)
  )


def _enhance(kind):
  return lambda image: kind(image).enhance(RANDAUG_LEVEL * 1.8 + 0.1)


# The ops as timm writes them, at our magnitude.
RANDAUG = (
  ImageOps.autocontrast,
  ImageOps.equalize,
  ImageOps.invert,
  lambda image: image.rotate(RANDAUG_LEVEL * 30),
  lambda image: ImageOps.posterize(image, 6),
  lambda image: ImageOps.solarize(image, 128),
  _enhance(ImageEnhance.Color),
  _enhance(ImageEnhance.Contrast),
  _enhance(ImageEnhance.Brightness),
  _enhance(ImageEnhance.Sharpness),
  _affine(1, RANDAUG_LEVEL * 0.3, 0, 0, 1, 0),
  _affine(1, 0, 0, RANDAUG_LEVEL * 0.3, 1, 0),
  _affine(1, 0, RANDAUG_LEVEL * 100, 0, 1, 0),
  _affine(1, 0, 0, 0, 1, RANDAUG_LEVEL * 100),
)
ARMS = {
  "ours": ours,
  WITHOUT_FAST: without_fast,
  RESTART: with_markers,
  "tf.data": tf_data,
  "torch+Pillow": pillow,
}

if __name__ == "__main__":
  print(json.dumps(measure(**json.loads(sys.argv[1]))), flush=True)
  os._exit(0)  # Otherwise some peers' workers keep the process alive.
