"""Accuracy and loss of predictions whose answer is known."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpn.evaluators import classification

# The images are the logits: (11 examples, 3 classes).
LOGITS = np.random.default_rng(0).normal(size=(11, 3)).astype(np.float32)
LABELS = np.eye(3, dtype=np.float32)[[0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1]]


def _predict(variables, batch):
  """Returns the images as logits, NaN where there is no image."""
  x = batch["image"]
  size = jnp.abs(x).sum(axis=-1, keepdims=True)
  return variables["params"] * x * (size / size), {}


def _classify(data, devices=4, batch_size=4, **kw):
  mesh = jax.sharding.Mesh(jax.devices()[:devices], ("data",))
  kw |= {"batch_size": batch_size, "data": data, "pp_fn": ""}
  evaluator = classification.Evaluator(_predict, mesh=mesh, **kw)
  return evaluator.run({"params": jnp.float32(1)})


def _sigmoid_xent(logits, labels):
  p = 1 / (1 + np.exp(-np.float64(logits)))
  return -np.sum(labels * np.log(p) + (1 - labels) * np.log(1 - p), -1)


# 11 examples fill none of these batches, or all of a single one.
@pytest.mark.parametrize(
  ("devices", "batch_size"), [(4, 4), (4, 8), (4, 16), (1, 1), (1, 11), (1, 3)]
)
@pytest.mark.parametrize("cache", [False, True])
def test_every_example_counts_once(save, devices, batch_size, cache):
  data = save(image=LOGITS, labels=LABELS)
  got = _classify(data, devices, batch_size, cache_final=cache)
  right = LOGITS.argmax(-1) == LABELS.argmax(-1)
  assert 0 < right.sum() < 11
  loss = _sigmoid_xent(LOGITS, LABELS).mean()
  want = {"prec@1": right.mean(), "loss": loss}
  assert got == pytest.approx(want, rel=1e-6)


def test_by_hand(save):
  labels = np.eye(2)[[0, 1, 1]]
  logits = np.array([[1.0, 3.0], [0.0, 2.0], [-1.0, 1.0]])
  data = save(image=logits.astype(np.float32), labels=labels)
  got = _classify(data, loss_name="softmax_xent")
  # One softmax of a difference of 2 is wrong, two are right.
  assert got["prec@1"] == pytest.approx(2 / 3)
  wrong, right = np.log(1 + np.exp(2)), np.log(1 + np.exp(-2))
  assert got["loss"] == pytest.approx((wrong + 2 * right) / 3)


def test_examples_without_labels_do_not_count(save):
  labels = LABELS.copy()
  labels[[1, 4, 10]] = 0
  rest = labels.any(axis=-1)
  got = _classify(save(image=LOGITS, labels=labels), batch_size=8)
  right = (LOGITS.argmax(-1) == labels.argmax(-1))[rest]
  assert got["prec@1"] == pytest.approx(right.mean())
  loss = _sigmoid_xent(LOGITS, labels)[rest].mean()
  assert got["loss"] == pytest.approx(loss, rel=1e-6)


def test_any_of_several_labels_is_right(save):
  labels = np.array([[1, 1, 0], [0, 1, 1], [1, 0, 1]], np.float32)
  logits = np.float32([[0, 2, 1], [5, 1, 2], [3, 9, 4]])
  got = _classify(save(image=logits, labels=labels))
  assert got["prec@1"] == pytest.approx(1 / 3)


def test_integer_labels(save):
  data = save(image=LOGITS, label=LABELS.argmax(-1))
  with pytest.raises(ValueError, match="Preprocess integer labels with onehot"):
    _classify(data, label_key="label")


def test_all_labels_missing_is_an_error(save):
  data = save(image=LOGITS, labels=0 * LABELS)
  with pytest.raises(ValueError, match="every one of them is masked out"):
    _classify(data)


def test_labels_under_another_key(save):
  data = save(image=LOGITS, real=np.roll(LABELS, 1, axis=-1))
  right = LOGITS.argmax(-1) == (LABELS.argmax(-1) + 1) % 3
  got = _classify(data, label_key="real")
  assert got["prec@1"] == pytest.approx(right.mean())
