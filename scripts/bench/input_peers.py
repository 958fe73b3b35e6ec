"""What people would use instead of our input: tf.data, and Pillow in workers.

For scripts.bench_input, which has the tasks. Each function returns an endless
iterator over batches of float32 images in [-1, 1], made from the same files,
with as many threads or processes as there are cores. Their libraries come from
the extra `bench`.
"""

import random
from collections.abc import Iterator, Sequence

import numpy as np

import input_pipeline

RANDAUG_LAYERS, RANDAUG_LEVEL = 2, 1.5


def tf_data(
  task: str, files: Sequence[str], images: np.ndarray, batch_size: int
) -> Iterator[np.ndarray]:
  """Returns batches by tf.data, in big_vision's way.

  Args:
    task: a name in bench_input.TASKS.
    files: JPEGs; of all tasks but "tiny".
    images: (examples, 32, 32, 3) for that one.
    batch_size: images in a batch.

  Raises:
    NotImplementedError: the task needs RandAugment, whose TensorFlow version
      needs tensorflow_addons and no longer runs.
  """
  if task == "randaug":
    raise NotImplementedError(task)
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
    image = tf.image.random_crop(
      tf.pad(image, [[4, 4], [4, 4], [0, 0]]), (32, 32, 3)
    )
    return tf.image.random_flip_left_right(image)

  fn = {"eval": evaluate, "tiny": tiny}.get(task, random_crop)
  dataset = tf.data.Dataset.from_tensor_slices(
    images if task == "tiny" else list(files)
  )
  dataset = dataset.repeat().shuffle(1000)
  if task != "tiny":
    dataset = dataset.map(tf.io.read_file, tf.data.AUTOTUNE)
  dataset = dataset.map(
    lambda x: tf.cast(fn(x), tf.float32) / 127.5 - 1.0, tf.data.AUTOTUNE
  )
  dataset = dataset.batch(batch_size, drop_remainder=True)
  return dataset.prefetch(tf.data.AUTOTUNE).as_numpy_iterator()


class PillowExamples:
  """A torch-style data set: one image by index, Pillow and NumPy inside."""

  def __init__(self, task: str, files: Sequence[str], images: np.ndarray):
    """Takes what `tf_data` does."""
    self._task, self._files, self._images = task, files, images

  def __len__(self):
    return len(self._images if self._task == "tiny" else self._files)

  def __getitem__(self, index: int):
    import torch
    from PIL import Image

    if self._task == "tiny":
      padded = np.pad(self._images[index], ((4, 4), (4, 4), (0, 0)))
      top, left = random.randrange(9), random.randrange(9)
      image = Image.fromarray(padded[top : top + 32, left : left + 32])
    else:
      image = Image.open(self._files[index]).convert("RGB")
    if self._task == "eval":
      image = _pillow_eval(image)
    else:
      if self._task != "tiny":
        box = _pillow_box(*image.size)
        bilinear = Image.Resampling.BILINEAR
        image = image.resize((224, 224), bilinear, box=box)
      if random.random() < 0.5:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
      if self._task == "randaug":
        for augment in random.choices(
          _pillow_augmentations(), k=RANDAUG_LAYERS
        ):
          image = augment(image)
    array = np.asarray(image, np.float32) / 127.5 - 1
    return torch.from_numpy(array)


def pillow(
  task: str, files: Sequence[str], images: np.ndarray, batch_size: int
) -> Iterator[np.ndarray]:
  """Returns batches by Pillow in torch's worker processes, in timm's way."""
  import torch.utils.data

  loader = torch.utils.data.DataLoader(
    PillowExamples(task, files, images),
    batch_size,
    sampler=torch.utils.data.RandomSampler(
      range(len(images if task == "tiny" else files)),
      replacement=True,
      num_samples=10**9,
    ),
    num_workers=input_pipeline.num_cores(),
    drop_last=True,
  )
  return (batch.numpy() for batch in loader)


def _pillow_box(cols: int, rows: int) -> tuple[int, int, int, int]:
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


def _pillow_eval(image):
  from PIL import Image

  factor = 256 / min(image.size)
  cols, rows = (round(side * factor) for side in image.size)
  image = image.resize((cols, rows), Image.Resampling.BOX)
  left, top = (cols - 224) // 2, (rows - 224) // 2
  return image.crop((left, top, left + 224, top + 224))


def _pillow_augmentations():
  """Returns RandAugment's ops as timm writes them, at our magnitude."""
  from PIL import Image, ImageEnhance, ImageOps

  def affine(*matrix):
    return lambda image: image.transform(
      image.size, Image.Transform.AFFINE, matrix, fillcolor=(128, 128, 128)
    )

  enhance = lambda kind: (
    lambda image: kind(image).enhance(RANDAUG_LEVEL * 1.8 + 0.1)
  )
  return [
    ImageOps.autocontrast,
    ImageOps.equalize,
    ImageOps.invert,
    lambda image: image.rotate(RANDAUG_LEVEL * 30),
    lambda image: ImageOps.posterize(image, 6),
    lambda image: ImageOps.solarize(image, 128),
    enhance(ImageEnhance.Color),
    enhance(ImageEnhance.Contrast),
    enhance(ImageEnhance.Brightness),
    enhance(ImageEnhance.Sharpness),
    affine(1, RANDAUG_LEVEL * 0.3, 0, 0, 1, 0),
    affine(1, 0, 0, RANDAUG_LEVEL * 0.3, 1, 0),
    affine(1, 0, RANDAUG_LEVEL * 100, 0, 1, 0),
    affine(1, 0, 0, 0, 1, RANDAUG_LEVEL * 100),
  ]


PEERS = {"tf.data": tf_data, "torch+Pillow": pillow}
