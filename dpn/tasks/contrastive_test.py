"""The contrastive task: its numbers, what is frozen, what it refuses."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dpn import flops, losses, optim, sharding, tasks, trees
from dpn.tasks import contrastive
from dpn.trainers import restore, update
from dpn.weights import files

RNG = np.random.default_rng(0)
BATCH = {
  "image": RNG.normal(size=(8, 8, 8, 3)).astype(np.float32),
  "text": RNG.integers(0, 13, (8, 4)).astype(np.int32),
}
SMALL = {"width": 8, "depth": 1, "mlp_dim": 16, "num_heads": 2}
MODEL = {
  "image": {**SMALL, "patch_size": (4, 4), "stem_ln": "dpn"},
  "text": {**SMALL, "vocab_size": 13},
  "out_dim": 6,
  "temperature_init": 10.0,
}
CONFIGS = {
  "softmax": {"model": MODEL},
  "sigmoid": {"model": {**MODEL, "bias_init": -3.0}, "loss": "sigmoid"},
}
TOWERS = ("image", "text")
LOCKED = [("img/.*", None), (".*", {"decay_type": "cosine"})]


def _in(dtype, model):
  """Returns the model's options with towers of this dtype."""
  towers = {name: {**model[name], "dtype_mm": dtype} for name in TOWERS}
  return {**model, **towers}


@functools.cache
def _task(name="softmax"):
  return _fresh(name)


def _fresh(name="softmax", **changes):
  task = tasks.make({"task": "contrastive", **CONFIGS[name], **changes})
  variables = jax.jit(task.init)(jax.random.key(0), BATCH)
  return task, variables


@pytest.mark.parametrize("name", CONFIGS)
def test_measures_what_it_predicts(name):
  task, variables = _task(name)
  zimg, ztxt, out = jax.jit(task.predict_fns()["predict"])(variables, BATCH)
  scale = [out["t"], out["b"]] if "b" in out else [out["t"]]
  loss = jax.jit(contrastive.LOSSES[name])(zimg, ztxt, *scale)
  measure = jax.jit(task.predict_fns()["loss"])
  measured = measure(variables, BATCH)
  np.testing.assert_allclose(measured["loss"], loss, rtol=1e-5)
  np.testing.assert_allclose(measured["temperature"], np.full(8, 10), rtol=1e-5)
  assert ("bias" in measured) == (name == "sigmoid")
  mask = np.arange(8) < 5
  fives = jax.tree.map(lambda x: x[:5], BATCH)
  masked = measure(variables, {**BATCH, "_mask": mask})
  np.testing.assert_allclose(
    masked["loss"][:5], measure(variables, fives)["loss"], rtol=1e-5
  )


def _step(name, config, parts, mesh=None, dtype="float32"):
  task, variables = _fresh(name, model=_in(dtype, CONFIGS[name]["model"]))
  params = jax.tree.map(lambda x: x.astype(dtype), variables["params"])
  sizes = {"total_steps": 9, "batch_size": 8, "data_size": 8}
  config = {"lr": 0.1, "optax_name": "identity", **config}
  tx, _ = optim.make(config, params, **sizes)
  frozen = optim.frozen_mask(config, params)
  state = update.TrainState(jnp.int32(0), params, {}, tx.init(params))
  step = update.make(task, tx, seed=0, frozen=frozen, grad_accum=parts)
  where = sharding.batch(mesh) if mesh else None
  step = jax.jit(step, in_shardings=(None, where))
  return state, step, task


@pytest.mark.parametrize("name", CONFIGS)
def test_a_batch_in_parts_has_the_gradients_of_the_whole(name):
  """On one device, and in parts on four; in double precision."""
  with jax.enable_x64(True):
    state, step, _ = _step(name, {}, 1, dtype="float64")
    whole, values = step(state, BATCH)
    state, step, _ = _step(name, {}, 2, sharding.make_mesh(), "float64")
    got, others = step(state, BATCH)
  moved = trees.flatten(jax.tree.map(np.subtract, got.params, state.params))
  before = trees.flatten(state.params)
  for key, x in trees.flatten(whole.params).items():
    want = np.subtract(x, before[key])
    np.testing.assert_allclose(moved[key], want, atol=1e-12, err_msg=key)
  assert values.keys() == others.keys()
  for key, x in values.items():
    assert float(x) == pytest.approx(float(others[key]), rel=1e-4), key


def test_a_locked_tower_keeps_its_bits_and_costs_no_backward_pass():
  config = {"schedule": LOCKED, "wd": 0.1, "grad_clip_norm": 1.0}
  state, step, task = _step("softmax", config, 1)
  program = step.lower(state, BATCH).compile()
  done, _ = program(program(state, BATCH)[0], BATCH)
  before, after = (trees.flatten(s.params) for s in (state, done))
  for key, x in before.items():
    same = np.array_equal(x, after[key])
    assert same == key.startswith("img/") or "key/bias" in key, key
  image = {"image": BATCH["image"]}
  embed = lambda v: task.predict_fns()["predict"](v, image)[0]
  forward = flops.count(embed, {"params": state.params})
  state, step, _ = _step("softmax", {}, 1)
  unlocked = step.lower(state, BATCH).compile().cost_analysis()["flops"]
  assert program.cost_analysis()["flops"] < unlocked - 2 * forward
  # And so it is in the FLOPs by which utilization is measured.
  args = {"params": state.params}, BATCH
  loss = lambda v, b: task.measure(v, b)[0]["loss"]
  everything = jax.tree.map(lambda _: True, args)
  locked = jax.tree.map(lambda _: True, args)
  locked[0]["params"]["img"] = jax.tree.map(
    lambda _: False, args[0]["params"]["img"]
  )
  locked[1]["image"] = False
  all_flops = flops.of_training(loss, *args, trained=everything)
  assert all_flops == 3 * flops.count(loss, *args)
  less = all_flops - flops.of_training(loss, *args, trained=locked)
  # Nor have the locked embeddings a gradient in either direction's logits.
  assert less == 2 * forward + 2 * (2 * 8 * 8 * MODEL["out_dim"])


def test_whitening_of_the_image_tower_is_fitted():
  image = {**MODEL["image"], "stem_ln": "whiten"}
  task, variables = _fresh(model={**MODEL, "image": image})
  found = task.fit(variables, iter([BATCH]))
  found = found["batch_stats"]["img"]["stem"]["whiten"]
  patches = BATCH["image"].reshape(8, 2, 4, 2, 4, 3).swapaxes(2, 3)
  mean = patches.reshape(32, 48).mean(0)
  np.testing.assert_allclose(found["mean"], mean, atol=1e-6)
  assert not np.allclose(found["matrix"], np.eye(48), atol=0.1)


def test_a_part_is_embedded_twice_with_the_same_state():
  """Each pass of σReparam moves its estimate of σ."""
  image = {**MODEL["image"], "weight_norm": "sigma_reparam"}
  task, variables = _fresh(model={**MODEL, "image": image})
  own = {k: v for k, v in variables.items() if k != "params"}
  params = jax.tree.map(lambda x: x + 0.3 * jnp.cos(x), variables["params"])
  rng = jax.random.key(0)

  def loss(params):
    seen, zs = own, []
    for i in range(2):
      part = jax.tree.map(lambda x, i=i: x[i::2], BATCH)
      z, new = task.embed({"params": params, **seen}, part, rng=rng)
      seen, zs = {**seen, **new}, [*zs, z]
    join = lambda *x: jnp.stack(x, axis=1).reshape(8, *x[0].shape[1:])
    z = jax.tree.map(join, *zs)
    return task.compare({"params": params}, z, BATCH)["loss"].mean()

  state = update.TrainState(jnp.int32(0), params, own, ())
  grads = lambda state: update._cached_gradients(task, state, BATCH, rng, 2)
  got = trees.flatten(jax.jit(grads)(state)[0])
  for name, want in trees.flatten(jax.jit(jax.grad(loss))(params)).items():
    np.testing.assert_allclose(got[name], want, rtol=1e-3, atol=1e-6)


def test_power_norm_cannot_be_embedded_twice():
  model = {**MODEL, "text": {**MODEL["text"], "norm": "powernorm"}}
  task = tasks.make({"task": "contrastive", "model": model})
  rng = jax.random.key(0)
  init = lambda rng: update.init(task, optax.identity(), rng, BATCH)
  state = jax.eval_shape(init, rng)
  with pytest.raises(ValueError, match="grad_accum=2 embeds each part twice"):
    update.gradients(task, state, BATCH, rng, parts=2)


class Own(nn.Module):
  """Two towers with other names than ours."""

  @nn.compact
  def __call__(self, image=None, text=None, *, train=False):
    ztxt = nn.Embed(13, 6, name="words")(text).mean(1)
    zimg = nn.Dense(6, name="pixels")(image.mean((1, 2)))
    zimg = nn.BatchNorm(not train, name="norm")(zimg)
    self.param("t", nn.initializers.zeros, (1,))
    return zimg, ztxt, {}


def test_a_model_of_ones_own(tmp_path):
  task = tasks.make({"task": "contrastive", "model_name": f"{__name__}:Own"})
  variables = task.init(jax.random.key(0), BATCH)
  assert task.fit(variables, []) is variables
  task.check_vocabularies({"text": 99})
  values, _ = task.measure(variables, BATCH)
  z = task.embed(variables, BATCH)[0]
  want = losses.softmax_contrastive(*z, temperature=jnp.ones(1))
  np.testing.assert_array_equal(values["loss"], want)
  path = str(tmp_path / "params.safetensors")
  files.save_params(path, **variables)
  other = jax.jit(task.init)(jax.random.key(1), BATCH)
  other = jax.device_put(other, sharding.replicated(sharding.make_mesh()))
  loaded = restore.load_file(path, task, other)
  jax.tree.map(np.testing.assert_array_equal, loaded, variables)
  assert task.model_options() == {"bias": False}


def test_gradient_norms_by_tower():
  task, variables = _task()
  norms = task.grad_norms(variables["params"])
  assert norms.keys() == {
    *("img/embedding", "img/block00"),
    *("txt/embedding", "txt/block00"),
  }
  want = trees.l2(variables["params"]["img"]["embedding"])
  assert norms["img/embedding"] == want


@pytest.mark.parametrize(
  ("config", "message"),
  [
    ({"loss": "sigmoid", "model": MODEL}, "bias_init=None: the sigmoid loss"),
    ({**CONFIGS["sigmoid"], "loss": "softmax"}, "softmax does not change"),
    ({"loss": "clip", "model": MODEL}, "Unknown loss 'clip'"),
    ({"model": MODEL, "model_name": "vit"}, "Unknown model_name 'vit'"),
    (
      {"model": MODEL, "loss_chunks": 3, "input": {"batch_size": 8}},
      "loss_chunks=3 must be a whole number that divides.*batch_size=8",
    ),
  ],
)
def test_wrong_configs(config, message):
  with pytest.raises(ValueError, match=message):
    tasks.make({"task": "contrastive", **config})


def test_wrong_batches():
  task = tasks.make({"task": "contrastive", "model": MODEL})
  with pytest.raises(ValueError, match="examples have image, but no 'text'"):
    task.init(jax.random.key(0), {"image": BATCH["image"]})
  several = {**BATCH, "text": np.zeros((8, 5, 4), np.int32)}
  with pytest.raises(ValueError, match="Choose one of several captions"):
    task.init(jax.random.key(0), several)
  task.check_vocabularies({"text": 13})
  with pytest.raises(ValueError, match=r"vocabulary of 260.*knows 13: set"):
    task.check_vocabularies({"text": 260})
