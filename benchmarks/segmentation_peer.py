"""ADE20K's preprocessing as in MMSegmentation, by OpenCV and NumPy.

A plain implementation, for torch's DataLoader, of the steps of "segment" in
`input_peers.TASKS`.
"""

import dataclasses
import random
from collections.abc import Sequence

import cv2
import numpy as np
from PIL import Image

_MEAN = np.array([123.675, 116.28, 103.53], np.float32)
_STD = np.array([58.395, 57.12, 57.375], np.float32)
_SIDE = 512


@dataclasses.dataclass
class Examples:
  """A map-style data set for torch: index → (image, labels)."""

  task: str
  paths: Sequence[str]  # of images in …/images/…, label maps in …/annotations/…

  def __post_init__(self):
    cv2.setNumThreads(1)  # in each worker, as MMSegmentation does

  def __len__(self):
    return len(self.paths)

  def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
    path = self.paths[index]
    image = cv2.cvtColor(cv2.imread(path), cv2.COLOR_BGR2RGB)
    mask = path.replace("/images/", "/annotations/").replace(".jpg", ".png")
    labels = np.array(Image.open(mask))
    labels[labels == 0] = 255
    labels -= 1
    labels[labels == 254] = 255
    image, labels = _resize(image, labels)
    image, labels = _crop(image, labels)
    if random.random() < 0.5:
      image, labels = image[:, ::-1], labels[:, ::-1]
    image = (_distort(image).astype(np.float32) - _MEAN) / _STD
    rows, cols = (_SIDE - side for side in labels.shape)
    image = np.pad(image, ((0, rows), (0, cols), (0, 0)))
    labels = np.pad(labels, ((0, rows), (0, cols)), constant_values=255)
    return image, labels.astype(np.int64)


def _resize(image, labels):
  ratio, sides = random.uniform(0.5, 2), labels.shape
  factor = min(2048 * ratio / max(sides), 512 * ratio / min(sides))
  size = tuple(round(side * factor) for side in sides[::-1])
  labels = cv2.resize(labels, size, interpolation=cv2.INTER_NEAREST)
  return cv2.resize(image, size), labels


def _crop(image, labels):
  for _ in range(10):
    top = random.randint(0, max(labels.shape[0] - _SIDE, 0))
    left = random.randint(0, max(labels.shape[1] - _SIDE, 0))
    box = np.s_[top : top + _SIDE, left : left + _SIDE]
    ids, counts = np.unique(labels[box], return_counts=True)
    counts = counts[ids != 255]
    if len(counts) > 1 and counts.max() / counts.sum() < 0.75:
      break
  return image[box], labels[box]


def _distort(image):
  def linear(values, times=1.0, plus=0.0):
    changed = values.astype(np.float32) * times + plus
    return np.clip(changed, 0, 255).astype(np.uint8)

  coin = lambda: random.random() < 0.5
  if coin():
    image = linear(image, plus=random.uniform(-32, 32))
  contrast_first = coin()
  if contrast_first and coin():
    image = linear(image, random.uniform(0.5, 1.5))
  if coin():
    hsv = cv2.cvtColor(image, cv2.COLOR_RGB2HSV)
    hsv[..., 1] = linear(hsv[..., 1], random.uniform(0.5, 1.5))
    image = cv2.cvtColor(hsv, cv2.COLOR_HSV2RGB)
  if coin():
    hsv = cv2.cvtColor(image, cv2.COLOR_RGB2HSV)
    hsv[..., 0] = (hsv[..., 0].astype(int) + random.randint(-18, 17)) % 180
    image = cv2.cvtColor(hsv, cv2.COLOR_HSV2RGB)
  if not contrast_first and coin():
    image = linear(image, random.uniform(0.5, 1.5))
  return image
