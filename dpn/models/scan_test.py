"""Scanned blocks compute what looped ones do, and what state models have."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpn.conftest import stacked
from dpn.models import vit
from dpn.models.norms import power_norm

SMALL = {"width": 16, "depth": 2, "num_heads": 2, "patch_size": (4, 4)}
IMAGE = np.random.RandomState(0).uniform(-1, 1, (4, 8, 8, 3)).astype("float32")


def stack(variables):
  """Returns looped variables in the layout of scanned ones."""
  return {name: stacked(tree) for name, tree in variables.items()}


@pytest.mark.parametrize(
  "options",
  [
    {
      **{"norm": "powernorm", "norm_kw": {"warmup": 1}},
      **{"posemb_join": "lape", "pool_type": "tok"},
    },
    {"norm": "switchable", "block_ln": "sub_ln", "posemb_join": "unshared"},
    pytest.param({"norm": "dtn"}, marks=pytest.mark.slow),
  ],
)
def test_scan_is_the_loop(options):
  key = jax.random.key(0)
  looped = vit.Model(5, head_zeroinit=False, **SMALL, **options)
  scanned = vit.Model(
    5,
    head_zeroinit=False,
    scan=True,
    remat_policy="nothing_saveable",
    **SMALL,
    **options,
  )
  variables = jax.jit(looped.init)(key, IMAGE)
  state = [k for k in variables if k != "params"]

  def run(model, variables):
    def f(variables):
      (logits, _), new = model.apply(
        variables, IMAGE, train=True, mutable=state
      )
      return (logits**2).sum(), new

    return jax.jit(jax.grad(f, has_aux=True, allow_int=True))(variables)

  grads, state_after = run(looped, variables)
  got = run(scanned, stack(variables))
  want = stack(grads), stack(state_after)
  drop_ints = lambda tree: [
    x for x in jax.tree.leaves(tree) if x.dtype == jnp.float32
  ]
  assert jax.tree.structure(got) == jax.tree.structure(want)
  for a, b in zip(drop_ints(got), drop_ints(want), strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5)


def test_running_statistics_are_collections_of_their_own():
  def collections(kind):
    model = vit.Model(5, norm=kind, **SMALL)
    return set(jax.eval_shape(model.init, jax.random.key(0), IMAGE))

  assert collections("layernorm") == {"params"}
  assert collections("dtn") == {"params"}
  assert collections("batchnorm") == {"params", "batch_stats"}
  assert collections("switchable") == {"params", "batch_stats"}
  overwritten = power_norm.OVERWRITE_WITH_GRADIENT
  assert collections("powernorm") == {"params", "batch_stats", overwritten}
