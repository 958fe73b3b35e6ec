"""Every option of a model trains, looped or scanned in half precision."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dpn.models import (
  attention,
  heads,
  init,
  mlp,
  norms,
  vit,
  weight_norm,
)
from dpn.models.norms import pointwise
from dpn.tasks import classification
from dpn.trainers import update

pytestmark = pytest.mark.usefixtures("compile_fast")
LOOPED = [
  {
    **{"norm": "layernorm", "stem_ln": "dpn", "posemb": "sincos1d"},
    **{"stem": "patch_stats"},
  },
  # From zero, where big_vision has it, a class token could only jump.
  {"norm": "dtn", "pool_type": "tok", "cls_blocks": 1, "weight_init": "deit"},
  {"norm": "batchnorm", "posemb": "rpe", "posemb_join": "lape"},
  {
    **{"norm": "powernorm", "block_ln": "normformer", "gelu": "exact"},
    "mlp": "geglu",
  },
  {"norm": "affine", "pool_type": "seq", "weight_init": "cct", "posemb": "rpe"},
  {
    **{"norm": "groupnorm", "pool_type": "map", "rep_size": True},
    **{"dropout": 0.1, "posemb_join": "shared"},
  },
  {
    **{"stem": "conv", "patch_size": (16, 16), "posemb": "sincos2d"},
    **{"qkv_bias": False, "pool_type": "0", "qk_norm": "scalenorm"},
  },
  {
    **{"norm": "layernorm_no_bias", "qk_norm": "layernorm_no_bias"},
    **{"v_norm": "layernorm_no_bias", "logit_scale": "learned"},
  },
  {"norm": "derf", "final_norm": "norm", "rope": "axial", "posemb": "none"},
  {
    **{"norm": "centernorm", "pool_type": "tok", "registers": 2},
    **{"block_ln": "specialized_cls", "prefix_norm": "own"},
  },
  {"norm": "seednorm", "stem_ln": "dpn", "stem": "hmlp"},
  {"norm": "none", "weight_norm": "sigma_reparam", "weight_init": "deit"},
  {"norm": "prepbn", "norm_kw": {"steps": 2}, "pool_type": "tok"},
  {"norm": "unifiednorm"},
  {"block_ln": "mix_ln", "block_ln_kw": {"post_share": 0.5}},
  {"block_ln": "keel", "layer_scale": 0.1, "pool_type": "tok"},
]
SCANNED = [
  {
    **{"norm": "standardize", "block_ln": "cct", "stoch_depth": 0.2},
    **{"stem": "tract", "rope": "mixed"},
  },
  {
    **{"norm": "rmsnorm", "block_ln": "sub_ln", "attn_dropout": 0.1},
    "mlp": "swiglu",
    **{"posemb_join": "unshared"},
  },
  {"norm": "scalenorm", "block_ln_kw": {"sa": "post", "post": "stream"}},
  {
    **{"norm": "switchable", "posemb": "sincos2d_lape", "gelu": "quick"},
    "posemb_join": "lape",
  },
  {"norm": "instancenorm", "posemb_join": "lape", "pool_type": "tok"},
  {"norm": "powernorm", "posemb": "rpe", "pool_type": "tok"},
  *(
    {"norm": "dyt", "qk_norm": n, "v_norm": n, "logit_scale": scale}
    for n, scale in [
      *(("layernorm", "learned"), ("rmsnorm", "one"), ("l2", "one")),
      *(("standardize", "sqrt"), ("scalenorm", "sqrt")),
      ("rmsnorm_no_scale", "one"),
    ]
  ),
  {
    **{"norm": "rmsnorm_plus_one", "pool_type": "tok", "stem": "vit_c"},
    **{"registers": 4, "registers_last": True, "prefix_norm": "own_final"},
  },
  {"norm": "none", "weight_norm": "sigma_reparam", "pool_type": "map"},
  {"norm": "prepbn", "norm_kw": {"steps": 2}, "final_norm": "norm"},
  {"norm": "unifiednorm", "pool_type": "tok", "final_norm": "norm"},
  {"block_ln": "res_post", "block_ln_kw": {"scale_init": 0.1}},
  {"block_ln": "peri_ln", "stem_ln": "post_posemb", "pool_type": "tok"},
  {"block_ln": "lns", "layer_scale": 0.1, "pool_type": "tok"},
  {"block_ln": "deepnorm", "pool_type": "tok"},
  {"block_ln": "hybridnorm", "qk_norm": "rmsnorm", "v_norm": "rmsnorm"},
]
_NGPT = "dpn.models.ngpt"
NGPT = {
  **{"block_ln": f"{_NGPT}:Block", "stem_ln": f"{_NGPT}:STEM_LN"},
  **{"weight_init": f"{_NGPT}:INITS", "final_norm": False},
  **{"weight_norm": f"{_NGPT}:scaled_logits", "stoch_depth": 0.1},
}
SMALL = {
  "width": 16,
  "depth": 2,
  "num_heads": 2,
  "patch_size": (4, 4),
  "head_zeroinit": False,
}
BATCH = {
  "image": np.random.RandomState(0).uniform(-1, 1, (4, 8, 8, 3)).astype("f"),
  "labels": np.eye(5, dtype="f")[[0, 1, 2, 3]],
}


def name(options):
  return " ".join(f"{k}={v}" for k, v in options.items())


def train(options):
  """Returns the losses before and after a short step, and the state then."""
  model = vit.Model(5, **{**SMALL, **options})
  task = classification.Classification(model, loss="softmax_xent")
  tx = optax.chain(optax.normalize_by_update_norm(), optax.sgd(0.003))

  @jax.jit
  def step(state):
    # The same mask each time: the loss must fall.
    key = jax.random.key(1)
    grads, values, model_state = update.gradients(
      task, state, BATCH, key, parts=1
    )
    updates, _ = tx.update(grads, state.opt_state)
    params = optax.apply_updates(state.params, updates)
    return state.replace(params=params, model_state=model_state), values["loss"]

  state = jax.jit(lambda key: update.init(task, tx, key, BATCH))(
    jax.random.key(0)
  )
  losses = [None, None]
  for i in range(2):
    state, losses[i] = step(state)
  return losses, state.variables


@pytest.mark.parametrize("options", [*LOOPED, NGPT], ids=name)
def test_two_steps(options):
  losses, variables = train(options)
  assert losses[1] < losses[0]
  assert all(np.isfinite(v).all() for v in jax.tree.leaves(variables))


@pytest.mark.slow
@pytest.mark.parametrize(
  "options", [*SCANNED, {**NGPT, "pool_type": "tok"}], ids=name
)
def test_scanned_in_half_precision(options):
  losses, variables = train({**options, "scan": True, "dtype_mm": "bfloat16"})
  leaves = jax.tree.leaves(variables)
  assert np.isfinite(losses).all()
  assert all(np.isfinite(v).all() for v in leaves)
  assert all(v.dtype in (jnp.float32, jnp.int32) for v in leaves)


def test_every_choice_is_tried():
  tables = {
    **vit.Config.CHOICES,
    "weight_init": init.INITS,
    **{"gelu": mlp.GELUS, "mlp": mlp.MLPS},
    "logit_scale": attention.LOGIT_SCALES,
    "weight_norm": weight_norm.WEIGHT_NORMS,
  }
  # These differ from derf in one function, which has a test of its own.
  tables["norm"] = (norms.NORMS.keys() - pointwise.FUNCTIONS) | {"derf"}
  tables["pool_type"] = set(heads.POOL_TYPES) - {"none"}  # labels per token
  for key, table in tables.items():
    tried = {getattr(vit.Model(**o).config, key) for o in LOOPED + SCANNED}
    assert tried == set(table), key
