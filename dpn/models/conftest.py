"""PyTorch's parameters under our names.

`get` returns an array by its name there, or None if there is none.
"""

import jax.numpy as jnp


def dense(get, name):
  """Returns a layer's parameters; a bias that theirs lacks is zero."""
  kernel, bias = get(f"{name}.weight").T, get(f"{name}.bias")
  return {
    "kernel": kernel,
    "bias": jnp.zeros_like(kernel[0]) if bias is None else bias,
  }


def norm(get, name):
  """Returns the parameters of a norm, of whatever kind it is."""
  ours = {"weight": "scale", "bias": "bias", "alpha": "alpha"}
  found = {ours[k]: get(f"{name}.{k}") for k in ours}
  return {k: x for k, x in found.items() if x is not None}


def attention(get, out, qkv=None, each="{}_proj", heads=4, norms="{}_norm"):
  """Returns attention's parameters; `qkv` is one layer, `each` of one."""

  def project(name, part=None):
    third = lambda x: (
      x if part is None else x.reshape(3, -1, *x.shape[1:])[part]
    )
    own = lambda name: None if get(name) is None else third(get(name))
    layer = dense(own, name)
    return {k: x.reshape(*x.shape[:-1], heads, -1) for k, x in layer.items()}

  params = {}
  for i, n in enumerate(("query", "key", "value")):
    params[n] = project(qkv, i) if qkv else project(each.format(n[0]))
    if found := norm(get, norms.format(n[0])):
      params[f"{n}_ln"] = found
  out = dense(get, out)
  kernel = out["kernel"].reshape(heads, -1, out["kernel"].shape[-1])
  return params | {"out": out | {"kernel": kernel}}


def block(get, sa, fc1, fc2, norms):
  """Returns a block's parameters.

  Args:
    get: see the module.
    sa: the parameters of its attention.
    fc1: name there of the first layer of the MLP.
    fc2: of the second.
    norms: has the name there of each of our norms.
  """
  return {
    "MultiHeadDotProductAttention_0": sa,
    "MlpBlock_0": {"Dense_0": dense(get, fc1), "Dense_1": dense(get, fc2)},
    **{ours: norm(get, theirs) for ours, theirs in norms.items()},
  }
