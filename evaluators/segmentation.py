"""Mean intersection over union of predicted label maps.

Whole images are predicted in windows and compared at the size of their label
maps. One confusion matrix counts the pixels of all images.
"""

import collections
import contextlib
import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils

from dpn import errors, processes, sharding, sliding_window
from dpn.evaluators import base
from dpn.input_pipeline import device, loader, pipeline
from dpn.tasks import base as tasks_base

# Sizes are rounded up to a multiple, so that few programs are compiled.
_PAD = 64


def confusion_matrix(
  predictions: np.ndarray,
  labels: np.ndarray,
  num_classes: int,
  ignore_label: int,
) -> np.ndarray:
  """Returns how many pixels of each class are predicted as which class.

  Args:
    predictions: classes, integers of any shape.
    labels: the true classes, of the same shape.
    num_classes: how many classes there are, from 0.
    ignore_label: pixels with this label do not count.

  Returns:
    (classes, classes) int64: rows are the truth.

  Raises:
    ValueError: shapes differ, or a number that counts is no class.
  """
  predictions, labels = np.asarray(predictions), np.asarray(labels)
  if predictions.shape != labels.shape:
    raise ValueError(
      f"Got predictions {predictions.shape} and labels {labels.shape}, "
      "expected equal shapes."
    )
  counts = labels != ignore_label
  truth, predicted = labels[counts], predictions[counts]
  for what, x in (("labels", truth), ("predictions", predicted)):
    if x.size and not 0 <= x.min() <= x.max() < num_classes:
      raise ValueError(
        f"Got {what} from {x.min()} to {x.max()}, expected [0, {num_classes}) "
        f"or, to leave a pixel out, the label {ignore_label}."
      )
  pairs = num_classes * truth.astype(np.int64) + predicted
  pairs = np.bincount(pairs, minlength=num_classes**2)
  return pairs.reshape(num_classes, num_classes).astype(np.int64)


def iou(matrix: np.ndarray) -> np.ndarray:
  """Returns the intersection over union of each class, in [0, 1].

  It is NaN for a class that occurs neither in the labels nor among the
  predictions. `matrix` is from `confusion_matrix`.
  """
  right = np.diag(matrix).astype(np.float64)
  union = matrix.sum(axis=0) + matrix.sum(axis=1) - right
  return np.divide(
    right, union, out=np.full_like(right, np.nan), where=union > 0
  )


def mean_iou(matrix: np.ndarray) -> float:
  """Returns the mean of `iou` over the classes that occur.

  A class that is only predicted counts with an IoU of 0, as in mmsegmentation.
  """
  return float(np.nanmean(iou(matrix)))


class _View(NamedTuple):
  """One way to look at an image."""

  rows: np.ndarray  # see `sliding_window.stitch`
  cols: np.ndarray
  logits: np.ndarray  # filled window by window


class _Image(NamedTuple):
  """An image that is being predicted."""

  index: int  # in the source
  example: loader.Example
  views: list[_View]


@dataclasses.dataclass(kw_only=True)
class Evaluator(base.Evaluator):
  """Reports `miou`, `pixel_acc` and `iou/<class>`, each in [0, 1].

  `pred` returns logits (batch, grid rows, grid cols, classes) of windows; they
  are upsampled bilinearly, averaged where windows overlap, and resized to the
  label map. Images smaller than a window are padded with zeros below and at the
  right, as in training. With several views of an image (scales, flipped) the
  probabilities are averaged. A class without any pixel, true or predicted, is
  not reported and does not count in the mean.
  """

  data: Mapping[str, Any]  # see `dpn.input_pipeline.sources.make`
  pp_fn: str  # leaves `image` and labels, whose sizes may differ
  window: tuple[int, int]  # (rows, cols) of pixels
  stride: tuple[int, int] | None = None  # likewise; None: the window's size
  pp_scales: Sequence[str] = ()  # other `pp_fn`s, for further views
  flip: bool = False  # also look at each view's mirror image
  ignore_label: int = 255  # in a config, `config.ignore_label` if that is set
  label_key: str = "labels"
  class_names: Sequence[str] = ()  # for the metrics; numbers without it

  def __post_init__(self):
    super().__post_init__()
    share = {
      "process_index": jax.process_index(),
      "process_count": jax.process_count(),
    }
    self._data = [
      pipeline.examples(self.data, pp_fn, **share)
      for pp_fn in (self.pp_fn, *self.pp_scales)
    ]
    for data in self._data:
      processes.agree(data.examples.facts)
    for window, stride in zip(self.window, self._stride, strict=True):
      sliding_window.starts(window, window, stride)
    self._predict = self.jit(
      lambda variables, batch: (
        self.predict_fn(variables, {"image": batch["image"]})[0],
        jnp.any(batch["more"]),
      )
    )

  @property
  def num_examples(self) -> int:
    """Number of images, over all processes."""
    return self._data[0].num_examples

  @property
  def _stride(self):
    return self.stride or self.window

  def check(self, variables, trace=jax.eval_shape):
    for data in self._data:
      for key in ("image", self.label_key):
        errors.check_known("key of the examples:", key, data.examples.fields)
    if len(kinds := {d.examples.fields["image"].dtype for d in self._data}) > 1:
      raise ValueError(
        f"Images of pp_fn and pp_scales are {sorted(map(str, kinds))}: one of "
        "them does not normalize pixels as the others do."
      )
    shape = self._data[0].examples.fields[self.label_key].shape
    if len(shape) != 2:
      raise ValueError(
        f"{self.label_key!r} has shape {shape}, expected label maps (rows, "
        "cols), as the op decode_labels makes them."
      )
    *_, classes = self._logits_shape(variables, trace)
    names, different = self.class_names, len({*self.class_names})
    if names and not different == len(names) == classes:
      raise ValueError(
        f"Got {different} different class_names in a list of {len(names)}, "
        f"expected one for each of the {classes} classes."
      )

  def run(self, variables):
    *_, classes = self._logits_shape(variables)
    matrix = np.zeros((classes, classes), np.int64)
    for index, example, predicted in self.predictions(variables):
      labels = example[self.label_key]
      try:
        matrix += confusion_matrix(
          predicted, labels, classes, self.ignore_label
        )
      except ValueError as e:
        source = self._data[0].examples.source
        raise ValueError(f"{source.describe(index)}: {e}") from e
    matrix = _sum_over_processes(matrix)
    if not matrix.any():
      raise ValueError(
        f"No pixel counts: every label is the ignore_label, "
        f"{self.ignore_label}."
      )
    names = self.class_names or range(classes)
    found = zip(names, iou(matrix), strict=True)
    return {
      "miou": mean_iou(matrix),
      "pixel_acc": np.trace(matrix) / matrix.sum(),
      **{f"iou/{name}": x for name, x in found if not np.isnan(x)},
    }

  def predictions(
    self, variables: tasks_base.Variables, places: Sequence[int] | None = None
  ) -> Iterator[tuple[int, loader.Example, np.ndarray]]:
    """Yields (index, example, predicted map) of this process's images.

    The map is of integers and has the shape of the example's label map. All
    processes have to take part. `places` chooses some of the images.
    """
    _, *grid, classes = self._logits_shape(variables)
    images = zip(*self._data, strict=True)
    if places is not None:
      images = (
        [(data.indices[i], data[i]) for data in self._data] for i in places
      )
    local = self.batch_size // jax.process_count()
    rows = sharding.rows_by_process(self.mesh, self.batch_size)
    mine = np.split(rows, jax.process_count())[jax.process_index()]
    chunks, complete = collections.deque(), []
    batches = self._batches(images, grid, classes, local, chunks)
    batches = device.DeviceIterator(batches, sharding.batch(self.mesh))
    with contextlib.closing(batches):
      for batch in batches:
        result = self._predict(variables, batch)
        yield from map(self._predicted, complete)  # while the devices work
        logits, more = jax.device_get(result)
        complete = _fill(chunks.popleft(), logits[mine])
        if not more:
          break
    yield from map(self._predicted, complete)

  def _logits_shape(self, variables, trace=jax.eval_shape):
    """Returns (batch, grid rows, grid cols, classes)."""
    _, dtype = field = self._data[0].examples.fields["image"]
    shape = (self.batch_size, *self.window, *field.shape[2:])
    batch = {
      "image": jax.ShapeDtypeStruct(shape, dtype),
      "more": jax.ShapeDtypeStruct(shape[:1], bool),
    }
    shape = trace(self._predict, variables, batch)[0].shape
    if len(shape) != 4:
      raise ValueError(
        f"pred gives an array {shape}, expected the logits of patches (batch, "
        "rows, cols, classes): set config.task='segmentation'."
      )
    return shape

  def _batches(self, images, grid, classes, size, chunks):
    """Yields batches of windows without end; after the last window, zeros.

    `chunks` gets the windows of each batch. "more" says whether this process
    has windows left after it: all have to go on as long as one process has.
    """
    windows = self._windows(images, grid, classes)
    take = lambda: list(itertools.islice(windows, size))
    chunk = take()
    shape, dtype = self._data[0].examples.fields["image"]
    while True:
      following = take()
      batch = np.zeros((size, *self.window, *shape[2:]), dtype)
      for row, (pixels, *_) in zip(batch, chunk, strict=False):
        row[: pixels.shape[0], : pixels.shape[1]] = pixels
      chunks.append(chunk)
      yield {"image": batch, "more": np.full(size, bool(following))}
      chunk = following

  def _windows(self, images, grid, classes):
    """Yields (pixels, where logits go, the image if this is its last)."""
    for views in images:
      image = _Image(*views[0], [])
      size = views[0][1][self.label_key].shape
      windows = []
      for _, example in views:
        for flip in (False, True)[: 1 + self.flip]:
          pixels = example["image"][:, :: -1 if flip else 1]
          view, cut = self._view(size, pixels, flip, grid, classes)
          image.views.append(view)
          windows += cut
      for i, (pixels, logits) in enumerate(windows):
        yield pixels, logits, image if i == len(windows) - 1 else None

  def _view(self, original, pixels, flip, grid, classes):
    """Returns a `_View`, and its windows as (pixels, where logits go)."""
    axes = (original, pixels.shape[:2], self.window, self._stride, grid)
    weights = [
      sliding_window.axis_weights(*axis) for axis in zip(*axes, strict=True)
    ]
    if flip:
      weights[1] = weights[1][::-1]
    weights = [
      np.pad(x, ((0, -len(x) % _PAD), (0, 0))).astype(np.float32)
      for x in weights
    ]
    logits = np.zeros((*(x.shape[1] for x in weights), classes), np.float32)
    rows, cols = (
      enumerate(sliding_window.starts(*axis))
      for axis in zip(*axes[1:4], strict=True)
    )
    cut = [
      (
        pixels[y : y + self.window[0], x : x + self.window[1]],
        logits[grid[0] * i :, grid[1] * j :][: grid[0], : grid[1]],
      )
      for (i, y), (j, x) in itertools.product(rows, cols)
    ]
    return _View(*weights, logits), cut

  def _predicted(self, image):
    """Returns (index, example, predicted map) of a finished image."""
    maps = (sliding_window.stitch(*view) for view in image.views)
    if len(image.views) > 1:
      maps = (jax.nn.softmax(x) for x in maps)
    total = next(maps)
    for x in maps:
      total += x
    if not jnp.isfinite(total).all():  # would be predicted as class 0
      raise ValueError("A logit is not finite: training has diverged.")
    rows, cols = image.example[self.label_key].shape
    predicted = np.asarray(jnp.argmax(total, axis=-1))[:rows, :cols]
    return image.index, image.example, predicted


def _fill(chunk, logits):
  """Puts logits where they belong; returns the images that are complete."""
  for (_, place, _), x in zip(chunk, logits, strict=False):
    place[...] = x
  return [image for _, _, image in chunk if image]


def _sum_over_processes(matrix):
  # JAX would cut int64 down to int32.
  halves = multihost_utils.process_allgather(matrix.view(np.uint32))
  return np.ascontiguousarray(halves).view(np.int64).sum(axis=0)
