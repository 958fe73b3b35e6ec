"""Classification on a linear model, whose losses can be written out."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpn import mixing, tasks
from dpn.tasks import base, classification

RNG = np.random.default_rng(0)
BATCH = {
  "image": RNG.normal(size=(6, 2, 2, 1)).astype(np.float32),
  "labels": np.eye(3, dtype=np.float32)[[0, 1, 2, 0, 1, 2]],
}


class _Linear(nn.Module):
  """A linear classifier that counts its training batches, with dropout."""

  rate: float = 0.0

  @nn.compact
  def __call__(self, image, *, train=False):
    count = self.variable("stats", "count", lambda: jnp.int32(0))
    if train and not self.is_initializing():
      count.value += 1
    x = image.reshape(image.shape[0], -1)
    x = nn.Dropout(self.rate)(x, not train)
    logits = nn.Dense(3, name="head")(x)
    return logits, {"logits": logits}


def _task(rate=0.0, **kw):
  task = classification.Classification(_Linear(rate), **kw)
  return task, task.init(jax.random.key(0), BATCH)


def _softmax_xent(variables, image, labels):
  """Returns the loss of each example in float64."""
  head = jax.tree.map(np.float64, variables["params"]["head"])
  logits = np.float64(image).reshape(6, -1) @ head["kernel"] + head["bias"]
  log_z = np.log(np.exp(logits).sum(-1))
  return (np.float64(labels) * (log_z[:, None] - logits)).sum(-1)


def test_evaluation_is_the_loss_of_each_example():
  task, variables = _task(
    loss="softmax_xent", mixup=mixing.Mixup(1.0), rate=0.5
  )
  measured, state = task.measure(variables, BATCH)
  want = _softmax_xent(variables, BATCH["image"], BATCH["labels"])
  np.testing.assert_allclose(measured["loss"], want, rtol=1e-5)
  assert state == {}
  fns = task.predict_fns()
  np.testing.assert_array_equal(
    fns["loss"](variables, BATCH)["loss"], measured["loss"]
  )
  logits, out = fns["predict"](variables, {"image": BATCH["image"]})
  np.testing.assert_array_equal(logits, out["logits"])
  assert logits.shape == (6, 3)


def test_training_mixes_images_and_labels_alike():
  task, variables = _task(loss="softmax_xent", mixup=mixing.Mixup(0.8))
  rng = jax.random.key(7)
  measured, state = task.measure(variables, BATCH, rng=rng)
  mixed = mixing.mixup(
    jax.random.split(rng)[0], 0.8, BATCH["image"], BATCH["labels"]
  )
  want = _softmax_xent(variables, *mixed)
  np.testing.assert_allclose(measured["loss"], want, rtol=1e-5)
  plain = _softmax_xent(variables, BATCH["image"], BATCH["labels"])
  assert np.abs(want - plain).max() > 0.01
  assert int(state["stats"]["count"]) == 1


def test_mixing_ends_when_it_should():
  task, variables = _task(
    loss="softmax_xent", mixup=mixing.Mixup(0.8, until_steps=3)
  )
  kw = {"variables": variables, "batch": BATCH, "rng": jax.random.key(7)}
  loss = lambda task: task.measure(**kw)[0]["loss"]
  at = jax.jit(lambda step: loss(task.at(step)))
  plain = _softmax_xent(variables, BATCH["image"], BATCH["labels"])
  np.testing.assert_allclose(at(2), loss(task), rtol=1e-5)
  assert np.abs(at(2) - plain).max() > 0.01
  np.testing.assert_allclose(at(3), plain, rtol=1e-5)


def test_training_drops_out():
  task, variables = _task(rate=0.5)
  losses = [
    task.measure(variables, BATCH, rng=jax.random.key(i))[0]["loss"]
    for i in (1, 1, 2)
  ]
  np.testing.assert_array_equal(losses[0], losses[1])
  assert np.abs(losses[0] - losses[2]).max() > 0.01


def test_init_head_bias():
  _, variables = _task(init_head_bias=-6.9)
  assert variables["params"]["head"]["bias"].tolist() == [np.float32(-6.9)] * 3
  assert _task()[1]["params"]["head"]["bias"].tolist() == [0, 0, 0]
  task = classification.Classification(nn.Dense(3), init_head_bias=-6.9)
  with pytest.raises(ValueError, match="head/bias, which this one lacks"):
    task.init(jax.random.key(0), BATCH)


CONFIG = {"num_classes": 3, "model": {"variant": "mu/2"}}


def test_make_reads_the_config():
  mix = {"p": 0.2, "fold_in": None}
  config = {**CONFIG, "loss": "softmax_xent", "mixup": mix}
  task = tasks.make({**config, "init_head_bias": -2.0})
  assert task.model.config.width == 32
  assert task.model.num_classes == 3
  got = (task.loss, task.mixup.p, task.init_head_bias)
  assert got == ("softmax_xent", 0.2, -2.0)


def _linear(num_classes, *, rate=0.0):
  assert num_classes == 3
  return _Linear(rate)


def test_a_model_of_ones_own():
  config = {"num_classes": 3, "model_name": f"{__name__}:_linear"}
  task = tasks.make({**config, "model": {"rate": 0.5}})
  assert task.model == _Linear(0.5)
  variables = task.init(jax.random.key(0), BATCH)
  assert task.fit({}, iter([])) == {}
  assert task.grad_norms(variables["params"]).keys() == {"head"}


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"task": "classify"}, "Unknown task 'classify'"),
    ({"task": "nowhere.tasks:Task"}, "there is no module 'nowhere'"),
    ({"model_name": "vitt"}, "Unknown model_name 'vitt'.*mean 'vit'"),
    ({"num_classes": None}, "config.num_classes is missing"),
    ({"loss": "softmax"}, "Unknown loss 'softmax'.*mean 'softmax_xent'"),
    ({"augment": {"crop": 1}}, "Unknown key in config.augment: 'crop'"),
    ({"mixup": {"q": 1}}, "Unknown key in config.mixup: 'q'"),
    ({"mixup": {"fold_in": "data"}}, "mixup.fold_in='data' is not supported"),
  ],
)
def test_wrong_configs(changes, message):
  with pytest.raises(ValueError, match=message):
    tasks.make({**CONFIG, **changes})


def test_gradients_of_another_embedding_are_told_by_their_groups():
  grads = {"Conv_0": {"kernel": np.array([3.0, 4.0])}, "head": {"bias": 2.0}}
  norms = base.grad_norms_by_depth(grads, "embedding", "Transformer")
  assert norms == {"Conv_0": 5.0, "head": 2.0}
