"""Muon and LAMB against timm's, and with a Vision Transformer's parameters."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dpn import lamb, muon, optim, trees
from dpn.models import bert, vit

BLOCK = "Transformer/encoderblock_0"
ATTENTION = f"{BLOCK}/MultiHeadDotProductAttention_0"
# Ours, with the shape of the kernel if that is not a transposed weight.
NAMES = {
  f"{ATTENTION}/query/kernel": ("query", (8, 4, 3)),
  f"{ATTENTION}/out/kernel": ("out", (4, 3, 8)),
  f"{BLOCK}/MlpBlock_0/Dense_0/kernel": ("Dense_0", (8, 6)),
  f"{BLOCK}/LayerNorm_0/scale": ("scale", (8,)),
  "embedding/kernel": ("embedding", (10, 8)),
}
TIMM = {"nesterov": False, "b2": 0.95, "eps": 1e-7}
OPTIMIZERS = {  # whose weight decay is not multiplied by lr, or is
  "default": ("scale_by_muon", {**TIMM, "ns_coeffs": "dion"}, 0.02 * 0.1),
  "original": (
    "scale_by_muon",
    {**TIMM, "ns_coeffs": "standard", "consistent_rms": None},
    0.02 * 0.1,
  ),
  "lamb": ("scale_by_lamb", {"weight_decay": 0.1}, 0.0),
}
SIZES = {"total_steps": 3, "batch_size": 8, "data_size": 64}


@pytest.mark.parametrize("scan", [False, True])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_three_steps_of_timm(name, scan, golden, precision):
  vectors = golden("muon")
  stacked = lambda key: scan and "encoderblock" in key

  def tree(prefix):
    flat = {}
    for ours, (theirs, shape) in NAMES.items():
      x = vectors[f"{prefix}/{theirs}"].T.reshape(shape)
      key = ours.replace("_0/", "/", 1) if stacked(ours) else ours
      flat[key] = np.stack([x, x]) if stacked(ours) else x
    return precision.cast(trees.unflatten(flat))

  config = dict(
    zip(("optax_name", "optax", "wd"), OPTIMIZERS[name], strict=True)
  )
  config["lr"] = 0.02
  params = tree("param")
  tx, _ = optim.make(config, params, **SIZES)
  state = tx.init(params)
  for i in range(3):
    updates, state = jax.jit(tx.update)(tree(f"grad{i}"), state, params)
    params = optax.apply_updates(params, updates)
  close = {"float32": 1e-4, "float64": 1e-6}[precision.dtype]
  jax.tree.map(
    lambda got, want: np.testing.assert_allclose(
      got, want, rtol=close, atol=close
    ),
    params,
    tree(name),
  )


def test_what_muon_does_not_take_has_plain_adam():
  """Also where the momentum of the rest is Nesterov's, as by default."""
  params = {"head": {"kernel": jnp.ones((4, 2))}}
  own, adam = muon.scale_by_muon(), optax.scale_by_adam()
  states = own.init(params), adam.init(params)
  for i in range(3):
    grads = jax.tree.map(lambda x, i=i: x * (1 - 2 * (i == 1)), params)
    got, mine = own.update(grads, states[0], params)
    want, theirs = adam.update(grads, states[1])
    jax.tree.map(np.testing.assert_array_equal, got, want)
    states = mine, theirs


def test_lamb_where_there_is_no_length():
  """An update is Adam's if the kernel is 0, and 0 if that is."""
  tx = lamb.scale_by_lamb()
  for kernel, gradient, want in ((0.0, 2.0, 1.0), (3.0, 0.0, 0.0)):
    params = {"kernel": jnp.full(4, kernel)}
    gradients = {"kernel": jnp.full(4, gradient)}
    update, _ = tx.update(gradients, tx.init(params), params)
    np.testing.assert_allclose(update["kernel"], np.full(4, want), rtol=1e-5)


def test_what_muon_takes_of_bert():
  size = {"width": 8, "depth": 2, "num_heads": 2, "mlp_dim": 9}
  model, text = bert.Model(5, **size, vocab_size=7), jnp.zeros((1, 3), int)
  params = jax.eval_shape(model.init, jax.random.key(0), text)["params"]
  pairs = jax.tree.leaves_with_path(
    muon.dimensions(params), is_leaf=lambda x: isinstance(x, tuple)
  )
  assert len(pairs) == 2 * 6
  assert all("/layers_" in trees.name(path) for path, _ in pairs)


@pytest.mark.parametrize("scan", [False, True])
def test_what_muon_takes_of_a_model(scan):
  kw = {"width": 8, "depth": 2, "num_heads": 2, "patch_size": (4, 4)}
  model = vit.Model(5, **kw, scan=scan, pool_type="map", stem_ln="dpn")
  image = jnp.zeros((1, 8, 8, 3))
  params = jax.eval_shape(model.init, jax.random.key(0), image)["params"]
  pairs = jax.tree.leaves_with_path(
    muon.dimensions(params), is_leaf=lambda x: isinstance(x, tuple)
  )
  taken = {trees.name(path): numbers for path, numbers in pairs}
  blocks = 1 if scan else 2
  assert len(taken) == 6 * (blocks + 1)
  assert not any(k.startswith(("embedding", "head", "stem")) for k in taken)
  block = f"Transformer/encoderblock{'' if scan else '_1'}"
  attention = f"{block}/MultiHeadDotProductAttention_0"
  first = int(scan)
  for layer, inputs, outputs in [
    (f"{attention}/key", 1, 2),
    (f"{attention}/out", 2, 1),
    (f"{block}/MlpBlock_0/Dense_1", 1, 1),
  ]:
    numbers = taken[f"{layer}/kernel"]
    middle = first + inputs
    assert numbers.reduction_axis == tuple(range(first, middle))
    assert numbers.output_axis == tuple(range(middle, middle + outputs))


def test_frozen_blocks_have_no_state():
  params = {
    "Transformer": {"encoderblock_0": {"Dense_0": {"kernel": jnp.ones((4, 3))}}}
  } | {"head": {"kernel": jnp.ones((4, 2))}}
  config = {"optax_name": "scale_by_muon", "lr": 0.1}
  config["schedule"] = [("Transformer/.*", None), (".*", {})]
  tx, _ = optim.make(config, params, **SIZES)
  state = tx.init(params)
  sizes = [x.size for x in jax.tree.leaves(state) if x.ndim == 2]
  assert sizes == [8, 8]  # two moments of the head
  updates, _ = tx.update(params, state, params)
  assert not updates["Transformer"]["encoderblock_0"]["Dense_0"]["kernel"].any()
