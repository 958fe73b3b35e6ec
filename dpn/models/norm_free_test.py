"""Networks of pointwise functions, and all normalizers at depth 48."""

import jax
import jax.numpy as jnp
import pytest

from dpn import trees
from dpn.models import norms, placement, vit

NGPT = "dpn.models.ngpt"
TINY = {"width": 16, "mlp_dim": 32, "num_heads": 2, "patch_size": (4, 4)}
# With equal blocks, which compile in a fraction of the time of 48.
EQUAL = {
  "mix_ln": {"block_ln_kw": {"post_share": 1.0}},
  "keel": {"block_ln": f"{__name__}:later_keel"},
  "specialized_cls": {"block_ln_kw": {"share": 1.0}, "pool_type": "tok"},
}
BLOCKS = [(name, EQUAL.get(name, {})) for name in placement.PLACEMENTS]


def later_keel():
  return lambda i, depth: placement.keel()(1, depth)


def _names(model):
  image = jnp.zeros((1, 8, 8, 3))
  params = jax.eval_shape(model.init, jax.random.key(0), image)["params"]
  return [*trees.flatten(params)]


@pytest.mark.parametrize("stem_ln", ["none", "dpn"])
def test_only_the_stem_normalizes(stem_ln):
  model = vit.Model(
    3, **TINY, depth=2, norm="derf", final_norm="norm", stem_ln=stem_ln
  )
  names = _names(model)
  assert sum(name.endswith("/shift") for name in names) == 5  # 2 a block, 1
  normalized = {n.split("/")[0] for n in names if n.endswith("/scale")}
  assert normalized == {"Transformer"} | (
    {"stem"} if stem_ln == "dpn" else set()
  )


@pytest.mark.slow
@pytest.mark.parametrize(
  "options",
  [
    *({"norm": norm, "stem_ln": "dpn"} for norm in norms.NORMS),
    *({"block_ln": name, "final_norm": True, **kw} for name, kw in BLOCKS),
    {"norm": "none", "weight_norm": "sigma_reparam", "weight_init": "deit"},
    {
      **{"block_ln": f"{NGPT}:Block", "stem_ln": f"{NGPT}:STEM_LN"},
      **{
        "weight_init": f"{NGPT}:INITS",
        "weight_norm": f"{NGPT}:scaled_logits",
      },
    },
  ],
)
def test_48_blocks_in_bfloat16_are_finite(options):
  kw = {"scan": True, "dtype_mm": "bfloat16", "head_zeroinit": False}
  model = vit.Model(
    3, **TINY, **kw, depth=48, **{"final_norm": "norm", **options}
  )
  image = jax.random.normal(jax.random.key(1), (2, 8, 8, 3))
  variables = jax.jit(model.init)(jax.random.key(0), image)
  mutable = [name for name in variables if name != "params"]

  @jax.jit
  def loss(variables):
    logits, _ = model.apply(variables, image, train=True, mutable=mutable)[0]
    return -jax.nn.log_softmax(logits.astype(jnp.float32))[:, 0].mean()

  value, grads = jax.value_and_grad(loss, allow_int=True)(variables)
  assert jnp.isfinite(value)
  assert not trees.nonfinite(grads["params"])
