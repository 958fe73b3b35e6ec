"""Segmentation on a linear model, whose losses can be written out."""

import functools

import cv2
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dpn import sharding, tasks
from dpn.models import vit
from dpn.tasks import segmentation
from dpn.trainers import update

RNG = np.random.default_rng(0)
IGNORE = 9
LABELS = RNG.integers(0, 3, (8, 4, 6)).astype(np.uint8)
LABELS[RNG.uniform(size=LABELS.shape) < 0.3] = IGNORE
LABELS[5] = IGNORE
BATCH = {
  "image": RNG.normal(size=(8, 4, 6, 1)).astype(np.float32),
  "labels": LABELS,
}


class _Linear(nn.Module):
  """Classifies patches of 2 x 2."""

  @nn.compact
  def __call__(self, image, *, train=False):
    logits = nn.Conv(3, (2, 2), (2, 2), "VALID", name="head")(image)
    return logits.mean((1, 2)), {"logits_2d": logits}


class _Sized(segmentation.Segmentation):
  """Measures a second number, the same for each image."""

  def measure(self, *args, **kw):
    measured, state = super().measure(*args, **kw)
    return measured | {"size": jnp.full(len(measured["loss"]), 7.0)}, state


TASK = _Sized(_Linear(), ignore_label=IGNORE)
VARIABLES = TASK.init(jax.random.key(0), BATCH)


def _losses():
  """Returns the cross entropy of every pixel in float64, (8, 4, 6)."""
  logits, _ = TASK.predict(VARIABLES, BATCH)
  pixels = np.stack(
    [
      cv2.resize(x, (6, 4), interpolation=cv2.INTER_LINEAR)
      for x in np.float64(logits)
    ]
  )
  log_p = pixels - np.log(np.exp(pixels).sum(-1, keepdims=True))
  labels = np.where(IGNORE == LABELS, 0, LABELS)
  return -np.take_along_axis(log_p, labels[..., None].astype(int), -1)[..., 0]


def test_the_loss_is_the_mean_over_valid_pixels():
  measured, state = TASK.measure(VARIABLES, BATCH)
  valid = LABELS != IGNORE
  want = (_losses() * valid).sum((1, 2)) / np.maximum(valid.sum((1, 2)), 1)
  np.testing.assert_allclose(measured["loss"], want, rtol=1e-5)
  np.testing.assert_array_equal(measured["_mask"], valid.sum((1, 2)))
  assert want[5] == 0
  assert state == {}
  task = segmentation.Segmentation(_Linear(), ignore_label=IGNORE - 256)
  none_ignored, _ = task.measure(VARIABLES, BATCH)  # as -1 is no 255
  np.testing.assert_array_equal(none_ignored["_mask"], [LABELS[0].size] * 8)


@functools.cache
def _step(devices, grad_accum, ignored=False):
  """Returns what a step of SGD measures, and its gradient."""
  labels = np.full_like(LABELS, IGNORE) if ignored else LABELS
  batch = {**BATCH, "labels": labels}
  mesh = sharding.make_mesh([("data", 4)])
  where = sharding.batch(mesh) if devices == 4 else None
  tx = optax.sgd(1.0)
  state = update.init(TASK, tx, jax.random.key(0), BATCH)
  frozen = jax.tree.map(lambda _: False, state.params)
  step = update.make(TASK, tx, seed=0, frozen=frozen, grad_accum=grad_accum)
  after, values = jax.jit(step)(state, jax.device_put(batch, where))
  grads = jax.tree.map(lambda x, y: x - y, state.params, after.params)
  return values, grads["head"]


@pytest.mark.parametrize(("devices", "grad_accum"), [(1, 1), (4, 1), (1, 4)])
def test_all_pixels_of_a_batch_weigh_the_same(devices, grad_accum):
  values, grads = _step(devices, grad_accum)
  want = _losses()[LABELS != IGNORE].mean()
  np.testing.assert_allclose(values["loss"], want, rtol=1e-5)
  np.testing.assert_allclose(values["size"], 7, rtol=1e-6)
  for name, grad in _step(1, 1)[1].items():
    np.testing.assert_allclose(grads[name], grad, atol=1e-6)


def test_a_batch_without_any_valid_pixel_changes_nothing():
  values, grads = _step(1, 1, ignored=True)
  assert values["loss"] == 0
  assert not any(grad.any() for grad in grads.values())


@pytest.mark.parametrize("label", [3, 200, -1])
def test_labels_that_are_no_class_make_the_loss_nan(label):
  labels = LABELS.astype(np.int32)
  labels[2, 1, 3] = label
  measured, _ = TASK.measure(VARIABLES, {**BATCH, "labels": labels})
  assert np.isnan(measured["loss"]).tolist() == [i == 2 for i in range(8)]


@pytest.mark.parametrize("size", [(8, 12), (5, 7), (32, 45)])
def test_upsampling_is_between_pixel_centres(size):
  x = RNG.normal(size=(2, 4, 5, 3)).astype(np.float32)
  got = segmentation.upsample(x, size)
  for image, want in zip(got, x, strict=True):
    want = cv2.resize(want, size[::-1], interpolation=cv2.INTER_LINEAR)
    np.testing.assert_allclose(image, want, atol=1e-6)


@pytest.mark.parametrize(
  ("pool_type", "stem_ln", "final_norm"),
  [("gap", "none", True), ("tok", "dpn", False)],
)
def test_the_decoder_is_the_head_on_each_patch(pool_type, stem_ln, final_norm):
  """On a window that is not square; the class token's logits are dropped."""
  model = {"variant": "mu/2", "pool_type": pool_type, "stem_ln": stem_ln}
  task = tasks.make(
    {
      "task": "segmentation",
      "num_classes": 3,
      "model": {**model, "final_norm": final_norm, "head_zeroinit": False},
    }
  )
  image = jnp.asarray(RNG.normal(size=(2, 4, 6, 3)), jnp.float32)
  batch = {"image": image, "labels": LABELS[:2]}
  variables = jax.jit(task.init)(jax.random.key(0), batch)
  names = variables["params"]["Transformer"]
  assert ("encoder_norm" in names) == final_norm
  logits, out = jax.jit(task.predict)(variables, batch)
  tokens = np.asarray(out["encoded"])[:, int(pool_type == "tok") :]
  head = jax.tree.map(np.asarray, variables["params"]["head"])
  want = tokens.reshape(2, 2, 3, 32) @ head["kernel"] + head["bias"]
  np.testing.assert_allclose(logits, want, atol=1e-5)
  assert task.model_options() == vit.options(task.model)


@pytest.mark.parametrize(
  ("batch", "message"),
  [
    (
      {"image": BATCH["image"]},
      "have image, but no 'labels'.*from a label map",
    ),
    ({**BATCH, "labels": LABELS[:, :2]}, "a label for each pixel"),
  ],
)
def test_wrong_batches(batch, message):
  with pytest.raises(ValueError, match=message):
    TASK.init(jax.random.key(0), batch)


def test_a_class_is_not_ignored():
  model = {"variant": "mu/2", "pool_type": "gap"}
  config = {"task": "segmentation", "num_classes": 300, "model": model}
  for ignored in ({}, {"ignore_label": 0}):
    with pytest.raises(ValueError, match="is one of the 300 classes: set it"):
      tasks.make(config | ignored)
  assert tasks.make(config | {"ignore_label": 300}).ignore_label == 300


def test_pooling_that_segmentation_has_no_use_for():
  config = {"task": "segmentation", "num_classes": 3}
  config["model"] = {"variant": "mu/2", "pool_type": "map"}
  with pytest.raises(ValueError, match=r"pool_type='map'.* Set it to 'tok'"):
    tasks.make(config)
