"""Segmentation against scikit-learn, hand counts and a window at a time."""

import cv2
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sklearn.metrics
from scipy import special

from dpn import processes, sharding
from dpn.evaluators import base, segmentation
from dpn.input_pipeline import sources

RNG = np.random.default_rng(0)
IGNORE = 255
CLASSES = 3
# Of images and their label maps: one smaller than a window, one like it.
SIZES = [((11, 22), (11, 22)), ((8, 8), (13, 10)), ((5, 30), (9, 40))]
SIZES += [((16, 9), (8, 5)), ((20, 20), (20, 20))]
PHOTOS = [
  {
    "image": RNG.uniform(-1, 1, (*size, 3)).astype(np.float32),
    "labels": RNG.choice([0, 1, 2, IGNORE], label_size).astype(np.uint8),
  }
  for size, label_size in SIZES
]
PHOTOS[1]["labels"][:] = IGNORE
WINDOW, STRIDE = (8, 10), (5, 7)
WEIGHTS = RNG.normal(size=(3, CLASSES)).astype(np.float32)
PLACE = RNG.normal(size=(4, 5, CLASSES)).astype(np.float32)


class Photos(sources.Source):
  """Images of many sizes; "half" are the same at half the size."""

  def __init__(self, split):
    self.name, self._half = f"photos:{split}", split == "half"

  def __len__(self):
    return len(PHOTOS)

  def __getitem__(self, index):
    photo = PHOTOS[index]
    image = photo["image"][::2, ::2] if self._half else photo["image"]
    return {**photo, "image": image}


def _predict(variables, batch):
  """Returns the logits of patches of 2 x 2, and nothing else."""
  image = batch["image"]
  x = image.reshape(len(image), 4, 2, 5, 2, 3).mean((2, 4)) @ WEIGHTS
  return 4 * (x + variables["params"] * PLACE[None]), {}


DATA = {"name": f"{__name__}:Photos", "split": "test"}


def _evaluator(**kw):
  kw = {"pp_fn": "", "window": WINDOW, "stride": STRIDE, **kw}
  kw = {"batch_size": 4, "data": DATA, **kw}
  return segmentation.Evaluator(_predict, mesh=sharding.make_mesh(), **kw)


VARIABLES = {"params": jnp.float32(0.3)}


def _logits(image, size):
  """Returns an image's logits, by loops over windows and OpenCV's resize."""
  resize = lambda x, rows, cols: cv2.resize(
    x, (cols, rows), interpolation=cv2.INTER_LINEAR
  )
  rows, cols = image.shape[:2]
  padded = [(0, max(w - n, 0)) for w, n in zip(WINDOW, (rows, cols))]  # noqa: B905
  image = np.pad(image, (*padded, (0, 0)))
  total = np.zeros((*image.shape[:2], CLASSES))
  count = np.zeros((*image.shape[:2], 1))
  starts = [
    {min(s, n - w) for s in range(0, n, stride) if s < n - w + stride}
    for n, w, stride in zip(image.shape, WINDOW, STRIDE)  # noqa: B905
  ]
  for y in starts[0]:
    for x in starts[1]:
      window = image[None, y : y + WINDOW[0], x : x + WINDOW[1]]
      logits, _ = _predict({"params": np.float32(0.3)}, {"image": window})
      total[y : y + WINDOW[0], x : x + WINDOW[1]] += resize(logits[0], *WINDOW)
      count[y : y + WINDOW[0], x : x + WINDOW[1]] += 1
  return resize((total / count)[:rows, :cols], *size)


def _want(flip=False, half=False):
  """Returns the confusion matrix, one pixel at a time."""
  matrix = np.zeros((CLASSES, CLASSES), np.int64)
  for photo in PHOTOS:
    images, labels = [photo["image"]], photo["labels"]
    images += [photo["image"][::2, ::2]] if half else []
    total = 0
    for image in images:
      total += special.softmax(_logits(image, labels.shape), -1)
      if flip:
        mirrored = _logits(image[:, ::-1], labels.shape)[:, ::-1]
        total += special.softmax(mirrored, -1)
    for truth, guess in zip(labels.flat, total.argmax(-1).flat, strict=True):
      if truth != IGNORE:
        matrix[truth, guess] += 1
  return matrix


@pytest.mark.parametrize("batch_size", [4, 16])
@pytest.mark.parametrize("views", [{}, {"flip": True, "half": True}])
def test_windows_over_images_of_many_sizes(batch_size, views, monkeypatch):
  summed = []
  note = lambda matrix: summed.append(matrix) or matrix
  monkeypatch.setattr(segmentation, "_sum_over_processes", note)
  half = {"pp_scales": ["shrink"]} if "half" in views else {}
  if half:
    shrink = lambda: lambda x, rng: {**x, "image": x["image"][::2, ::2]}
    monkeypatch.setitem(segmentation.pipeline.pp.OPS, "shrink", shrink)
  evaluator = _evaluator(batch_size=batch_size, flip="flip" in views, **half)
  evaluator.check(VARIABLES)
  got = evaluator.run(VARIABLES)
  want = _want(**views)
  np.testing.assert_array_equal(summed[0], want)
  assert got["miou"] == segmentation.mean_iou(want)
  assert got["pixel_acc"] == np.trace(want) / want.sum()


def test_confusion_matrix_by_hand():
  labels = np.array([[0, 0, 1], [1, 255, 255]], np.uint8)
  predictions = np.array([[0, 1, 1], [1, 0, 2]])
  matrix = segmentation.confusion_matrix(predictions, labels, 4, 255)
  want = [[1, 1, 0, 0], [0, 2, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]]
  assert matrix.tolist() == want
  assert matrix.dtype == np.int64
  # 1 of 2 and 2 of 3; classes 2 and 3 do not occur where labels count.
  want = [1 / 2, 2 / 3, np.nan, np.nan]
  np.testing.assert_allclose(segmentation.iou(matrix), want)
  assert segmentation.mean_iou(matrix) == pytest.approx(7 / 12)
  # Class 2 is only predicted: 0 of 1.
  matrix += segmentation.confusion_matrix([2], [1], 4, 255)
  assert segmentation.mean_iou(matrix) == pytest.approx((1 / 2 + 1 / 2) / 3)


def test_iou_as_scikit_learn_has_it():
  labels, predictions = RNG.integers(0, 11, (2, 50, 60))
  labels[RNG.uniform(size=labels.shape) < 0.2] = 11
  matrix = segmentation.confusion_matrix(predictions, labels, 11, 11)
  valid = labels != 11
  args = labels[valid], predictions[valid]
  np.testing.assert_array_equal(matrix, sklearn.metrics.confusion_matrix(*args))
  want = sklearn.metrics.jaccard_score(*args, average=None)
  np.testing.assert_allclose(segmentation.iou(matrix), want, rtol=1e-12)
  want = sklearn.metrics.jaccard_score(*args, average="macro")
  assert segmentation.mean_iou(matrix) == pytest.approx(want, rel=1e-12)


def test_many_pixels_are_summed_exactly():
  matrix = np.array([[2**40 + 1, 3], [2**33, 5]], np.int64)
  total = segmentation._sum_over_processes(matrix)
  assert total.tolist() == matrix.tolist()


def test_classes_have_names_and_absent_ones_no_number(monkeypatch):
  summed = lambda matrix: np.diag([4, 0, 0])
  monkeypatch.setattr(segmentation, "_sum_over_processes", summed)
  got = _evaluator(class_names=("sky", "road", "car")).run(VARIABLES)
  assert got == {"miou": 1.0, "pixel_acc": 1.0, "iou/sky": 1.0}


@pytest.mark.parametrize(
  ("predictions", "labels", "message"),
  [
    ([0, 1], [0, 3], r"labels from 0 to 3, expected \[0, 3\)"),
    ([0, 1], [-1, 1], "labels from -1 to 1"),
    ([0, 3], [0, 1], "predictions from 0 to 3"),
    ([0], [0, 1], r"predictions \(1,\) and labels \(2,\)"),
  ],
)
def test_what_is_no_class(predictions, labels, message):
  with pytest.raises(ValueError, match=message):
    segmentation.confusion_matrix(predictions, labels, 3, 255)


def test_wrong_sections_and_data(monkeypatch):
  with pytest.raises(
    ValueError, match="a stride of 9 pixels and a window of 8"
  ):
    _evaluator(stride=(9, 7))
  with pytest.raises(ValueError, match=r"Got 3 .* list of 4, .* 3 classes"):
    _evaluator(class_names=("sky", "road", "sky", "tree")).check(VARIABLES)
  message = r"Got 2 different class_names.* the 3 classes"
  for names in (("sky", "road"), ("sky", "road", "sky")):
    with pytest.raises(ValueError, match=message):
      _evaluator(class_names=names).check(VARIABLES)
  with pytest.raises(ValueError, match="Unknown key of the examples: 'label'"):
    _evaluator(label_key="label").check(VARIABLES)
  with monkeypatch.context() as patch:
    patch.setitem(PHOTOS[0], "image", PHOTOS[0]["image"].astype(np.uint8))
    evaluator = _evaluator(pp_scales=("value_range(-1, 1)",))
    with pytest.raises(ValueError, match=r"\['float32', 'uint8'\]: one of"):
      evaluator.check(VARIABLES)
  message = r"photos:test.*2.*labels from 0 to 7, expected"
  labels = PHOTOS[2]["labels"].copy()
  labels[0, :2] = 0, 7
  monkeypatch.setitem(PHOTOS[2], "labels", labels)
  with pytest.raises(ValueError, match=message):
    _evaluator().run(VARIABLES)
  for photo in PHOTOS:
    monkeypatch.setitem(photo, "labels", np.full_like(photo["labels"], IGNORE))
  with pytest.raises(ValueError, match="No pixel counts: every label is"):
    _evaluator().run(VARIABLES)


@pytest.mark.parametrize(
  ("config", "own", "want"),
  [
    ({}, {}, 255),
    ({"ignore_label": 7}, {}, 7),
    ({"ignore_label": 7}, {"ignore_label": 9}, 9),
  ],
)
def test_the_label_to_ignore_is_that_of_training(config, own, want):
  section = {"type": "segmentation", "data": DATA, "pp_fn": "", "log_steps": 1}
  section |= {"window": WINDOW} | own
  sizes = {"total_steps": 1, "batch_size": 4, "data_size": 4}
  config = {"evals": {"val": section}, **config}
  [scheduled] = base.from_config(
    config, {"predict": _predict}, sharding.make_mesh(), sizes
  )
  assert scheduled.evaluator.ignore_label == want


def test_logits_that_are_not_finite():
  with pytest.raises(ValueError, match="A logit is not finite"):
    _evaluator().run({"params": jnp.float32(np.nan)})


def test_a_model_without_logits_of_patches():
  evaluator = _evaluator()
  evaluator.predict_fn = lambda variables, batch: (batch["image"][:, 0], {})
  with pytest.raises(ValueError, match="expected the logits of patches"):
    evaluator.check(VARIABLES)


def test_processes_compare_their_data(monkeypatch):
  found = []
  monkeypatch.setattr(processes, "agree", lambda facts: found.append(facts()))
  _evaluator()
  monkeypatch.setitem(PHOTOS[0], "labels", PHOTOS[0]["labels"] + 1)
  _evaluator()
  one, other = (facts.pop("crc") for facts in found)
  assert one != other  # of hosts that have different copies
  assert found == 2 * [{"data": "photos:test", "examples": len(PHOTOS)}]


def test_some_of_the_images():
  evaluator = _evaluator()
  every = {i: maps for i, *maps in evaluator.predictions(VARIABLES)}
  some = list(evaluator.predictions(VARIABLES, places=[3, 0]))
  assert [index for index, *_ in some] == [3, 0]
  for index, *maps in some:
    jax.tree.map(np.testing.assert_array_equal, maps, every[index])
    np.testing.assert_array_equal(maps[0]["image"], PHOTOS[index]["image"])
