"""σReparam against the code of arXiv 2303.06296, and in a whole model."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpn import trees
from dpn.models import vit, weight_norm

TINY = {"width": 16, "depth": 2, "num_heads": 2, "patch_size": (4, 4)}
IMAGE = np.random.RandomState(0).uniform(-1, 1, (2, 8, 8, 3)).astype("f")


def test_a_training_step_of_the_authors(golden, precision):
  vectors = golden("frontier_states")
  get = lambda key: precision.cast(vectors[f"sigma_reparam/{key}"])
  params = {
    "kernel": get("param/weight").T,
    "bias": get("param/bias"),
    "sigma": get("param/sigma"),
  }
  stats = {"u": get("in/u")}

  def apply(params, x):
    variables = {"params": params, "batch_stats": stats}
    with weight_norm.sigma_reparam(train=True):
      dense = nn.Dense(8, dtype=x.dtype)
      return dense.apply(variables, x, mutable=["batch_stats"])

  y, vjp, state = jax.vjp(apply, params, get("in/x"), has_aux=True)
  precision.assert_close(y, get("train/out/y"))
  precision.assert_close(state["batch_stats"]["u"], get("train/state/u"))
  by_params, by_x = vjp(get("train/in/cotangent"))
  precision.assert_close(by_x, get("train/grad/x"))
  precision.assert_close(by_params["kernel"].T, get("train/grad/weight"))
  for name in ("bias", "sigma"):
    precision.assert_close(by_params[name], get(f"train/grad/{name}"))


def test_steps_of_a_convolution_of_the_authors(golden, precision):
  """Between them an optimizer multiplies the kernel by 1.5."""
  vectors = golden("methods")
  get = lambda key: precision.cast(vectors[f"sigma_reparam_conv/{key}"])
  ours = lambda x: x.reshape(4, 2, 3, 3).transpose(2, 3, 1, 0)
  last = lambda x: x.transpose(0, 2, 3, 1)
  u = get("in/u").reshape(2, 9).T.ravel()
  x, cotangent = last(get("in/x")), last(get("in/cotangent"))
  params = {k: get(f"param/{k}") for k in ("bias", "sigma")}
  conv = nn.Conv(4, (3, 3), (2, 2), padding=1, dtype=x.dtype)
  for i in range(3):
    got = lambda key, i=i: get(f"step{i}/{key}")
    kernel = ours(get("param/weight")) * 1.5**i

    def apply(params, x, u=u):
      variables = {"params": params, "batch_stats": {"u": u}}
      with weight_norm.sigma_reparam(train=True):
        return conv.apply(variables, x, mutable=["batch_stats"])

    given = params | {"kernel": kernel}
    y, vjp, state = jax.vjp(apply, given, x, has_aux=True)
    by_params, by_x = vjp(cotangent)
    precision.assert_close(y, last(got("out/y")))
    precision.assert_close(by_x, last(got("grad/x")))
    precision.assert_close(by_params["kernel"], ours(got("grad/weight")))
    precision.assert_close(by_params["sigma"], got("grad/sigma"))
    u = state["batch_stats"]["u"]
    precision.assert_close(u, got("state/u").reshape(2, 9).T.ravel())


@pytest.mark.parametrize("scan", [False, True])
def test_starts_as_the_plain_model(scan):
  kw = {**TINY, "scan": scan, "head_zeroinit": False}
  model = vit.Model(5, **kw, weight_norm="sigma_reparam")
  variables = jax.jit(model.init)(jax.random.key(0), IMAGE)
  flat = trees.flatten(variables["params"])
  plain = {k: x for k, x in flat.items() if not k.endswith("/sigma")}
  kernels = [k for k in plain if k.endswith("/kernel")]
  assert len(flat) - len(plain) == len(kernels) == (8 if scan else 14)
  want, _ = vit.Model(5, **kw).apply({"params": trees.unflatten(plain)}, IMAGE)
  got, _ = model.apply(variables, IMAGE)
  np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_the_kernel_of_dual_patchnorm():
  """Equation 3 with what LN0 adds to a patch, too: W is sigma / s(W) kernel."""
  model = vit.Model(3, **TINY, stem_ln="dpn", weight_norm="sigma_reparam")
  variables = model.init(jax.random.key(1), IMAGE)
  params = trees.flatten(variables["params"])
  params["stem/ln0/bias"] = jnp.linspace(-1, 1, 48)
  params["embedding/sigma"] = 3 * params["embedding/sigma"]
  run = lambda model, params: model.apply(
    variables | {"params": trees.unflatten(params)}, IMAGE
  )[1]["stem"]
  plain = vit.Model(3, **TINY, stem_ln="dpn")
  kernel = params["embedding/kernel"]
  [sigma] = params["embedding/sigma"]
  gain = sigma / jnp.linalg.norm(kernel.reshape(48, 16), 2)
  own = {k: v for k, v in params.items() if not k.endswith("sigma")}
  own["embedding/kernel"] = gain * kernel
  np.testing.assert_allclose(run(model, params), run(plain, own), atol=1e-4)


def test_one_iteration_a_step_in_a_head_used_twice():
  model = vit.Model(5, **TINY, weight_norm="sigma_reparam")
  variables = model.init(jax.random.key(0), IMAGE)
  params, stats = variables["params"], variables["batch_stats"]
  u = np.linspace(-1, 1, 16)
  stats["head"]["u"] = jnp.asarray(u, jnp.float32)
  _, state = model.apply(variables, IMAGE, train=True, mutable=["batch_stats"])
  kernel = np.float64(params["head"]["kernel"])
  want = kernel @ (u @ kernel)
  np.testing.assert_allclose(
    state["batch_stats"]["head"]["u"], want / np.linalg.norm(want), rtol=1e-4
  )
