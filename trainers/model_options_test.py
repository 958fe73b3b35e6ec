"""Every option of a model trains two steps, looped and scanned, tok and gap."""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dpn import trees
from dpn.configs import norm_zoo
from dpn.models import attention, heads, init, mlp, norms, stem, vit
from dpn.models.norms import pointwise
from dpn.models.weight_norm import WEIGHT_NORMS
from dpn.tasks import classification
from dpn.trainers import update

pytestmark = pytest.mark.usefixtures("compile_fast")


class Several(norms.Normalizer):
  """The mean of several normalizers, so that they share a program."""

  PER_TOKEN = False

  kinds: str = ""  # joined by a plus

  @nn.compact
  def __call__(self, x, train=False):
    kw = {"tokens": self.tokens, "dtype": self.dtype}
    kinds = self.kinds.split("+")
    return sum(
      norms.make(kind, name=kind, **kw)(x, train) / len(kinds) for kind in kinds
    ).astype(self.dtype or x.dtype)


def several(kinds):
  return {"norm": f"{__name__}:Several", "norm_kw": {"kinds": kinds}}


def qkv(norm, scale="sqrt"):
  return {"qk_norm": norm, "v_norm": norm, "logit_scale": scale}


CASES = {
  "placement": {
    # From zero, where big_vision has it, a class token could only jump.
    **{"norm": "dtn", "weight_init": "deit", "stem": "patch_stats"},
    **{"stem_ln": "dpn", "posemb": "sincos1d"},
  },
  "normformer": {
    **several("powernorm+batchnorm"),
    **{"posemb": "rpe", "posemb_join": "lape", "gelu": "exact", "mlp": "geglu"},
    "block_ln_kw": {"head_scale": "out", "resid_scale": True},
    **{"stem_ln": "pre", "remat_policy": "nothing_saveable"},
  },
  "sub_ln": {
    **several("groupnorm+switchable+instancenorm"),
    **{"attn_dropout": 0.1, "mlp": "swiglu", "posemb_join": "unshared"},
    **{"block_ln_kw": {"mlp_ln": "before_act"}, "head_dim": 6},
    **{"stem_ln": "rmsnorm", "stem_eps": 1e-3},
  },
  "cct": {
    **several("standardize+affine"),
    **{"stoch_depth": 0.2, "stoch_depth_grows": False},
    **{"stem": "tract", "rope": "mixed"},
    **{"weight_init": "cct", **qkv("standardize")},
    "stem_ln": "pre_no_learnable",
  },
  "peri_ln": {
    **several("seednorm+centernorm+bhyt"),
    **{"stem": "hmlp", "stem_ln": "post_posemb", "posemb": "sincos2d"},
    **qkv("l2", "one"),
  },
  "res_post": {
    **{"norm": "rmsnorm", "block_ln_kw": {"scale_init": 0.1}},
    **{"weight_init": "whiten", "stem_ln": "no_learnable"},
    **qkv("layernorm", "learned"),
  },
  "lns": {
    **several("scalenorm+rmsnorm_plus_one"),
    **{"layer_scale": 0.1, "stem": "vit_c", **qkv("rmsnorm", "one")},
    "stem_ln": "only_learnable",
  },
  "mix_ln": {"block_ln_kw": {"post_share": 0.5}, "stem_ln": "whiten"},
  "deepnorm": {
    **{"norm": "prepbn", "norm_kw": {"steps": 100}, "final_norm": "norm"},
    **{"posemb": "sincos2d_lape", "posemb_join": "shared", "dropout": 0.1},
    "stem_ln": "post",
  },
  "hybridnorm": {
    **several("dyt+derf"),
    **{"final_norm": "norm", "rope": "axial", "posemb": "none"},
    "stem_ln": "post_rmsnorm",
    **{"registers": 4, "registers_last": True, **qkv("rmsnorm_no_scale")},
  },
  "keel": {
    **{"final_norm": False, "block_ln_kw": {"gain": 3.0}},
    **{"stem_ln": "whiten_ln", "pool_norm": "norm"},
  },
  "specialized_cls": {
    **{"norm": "layernorm", "block_ln_kw": {"share": 1.0}},
    **{"registers": 2, "prefix_norm": "own"},
  },
  "unifiednorm": {
    **{**several("unifiednorm+layernorm_no_bias"), "block_ln": "placement"},
    **{"gelu": "quick", "final_norm": "norm", **qkv("scalenorm")},
  },
  "sigma_reparam": {
    **{"norm": "none", "block_ln": "placement", "stem": "conv"},
    **{"patch_size": (16, 16), "qkv_bias": False},
    **{"weight_norm": "sigma_reparam", "weight_init": "deit"},
    **qkv("layernorm_no_bias"),
  },
  "ngpt": norm_zoo.METHODS["ngpt"] | {"stoch_depth": 0.1},
}
CASES = {name: {"block_ln": name, **case} for name, case in CASES.items()}
OTHERS = {
  "cls_blocks": {"norm": "dtn", "pool_type": "tok", "weight_init": "deit"},
  "map": {"pool_type": "map", "rep_size": True, "prefix_norm": "own_final"},
  "seq": {"pool_type": "seq"},
  "tok": {"pool_type": "tok", "posemb_join_kw": {"cls": True}},
  "0": {"pool_type": "0"},
}
OTHERS["cls_blocks"]["cls_blocks"] = 1
OTHERS["map"]["registers"] = 2
OTHERS["tok"]["block_ln"] = "hybridnorm"
OTHERS["tok"]["block_ln_kw"] = {"first": "pre_both"}
SMALL = {
  **{"width": 16, "depth": 2, "mlp_dim": 24, "num_heads": 2},
  **{"patch_size": (4, 4), "head_zeroinit": False},
}
BATCH = {
  "image": np.random.RandomState(0).uniform(-1, 1, (4, 8, 8, 3)).astype("f"),
  "labels": np.eye(5, dtype="f")[[0, 1, 2, 3]],
}


def fill(path, shape):
  """Returns values to start from: initializers take longest to compile."""
  name = path[-1].key
  if not np.issubdtype(shape.dtype, np.floating):
    return jnp.full(shape.shape, 50, shape.dtype)  # training steps
  if name in ("mean", "ema", "window"):
    return jnp.zeros(shape.shape, shape.dtype)
  x = np.random.RandomState(sum(map(ord, str(path)))).normal(size=shape.shape)
  ones = name in ("scale", "var", "phi", "sigma", "alpha", "u", "lam")
  return jnp.asarray(float(ones) + 0.2 * x, shape.dtype)


def check_training(**options):
  """Asserts that two short steps train a model, and each of several norms."""
  model = vit.Model(5, **{**SMALL, **options})
  task = classification.Classification(model, loss="softmax_xent")
  tx = optax.chain(optax.normalize_by_update_norm(), optax.sgd(0.003))

  @jax.jit
  def step(state):
    # The same mask each time: the loss must fall.
    key = jax.random.key(1)
    grads, values, model_state = update.gradients(task, state, BATCH, key, 1)
    updates, _ = tx.update(grads, state.opt_state)
    params = optax.apply_updates(state.params, updates)
    state = state.replace(params=params, model_state=model_state)
    return state, values["loss"], grads

  init = lambda key: update.init(task, tx, key, BATCH)
  shapes = jax.eval_shape(init, jax.random.key(0))
  first = jax.tree_util.tree_map_with_path(
    fill, {"params": shapes.params, "model_state": shapes.model_state}
  )
  state = shapes.replace(**first, step=0, opt_state=tx.init(first["params"]))
  state, before, grads = step(state)
  state, after, _ = step(state)
  leaves = jax.tree.leaves((before, after, state.variables))
  assert all(np.isfinite(x).all() for x in leaves)
  assert all(x.dtype in (jnp.float32, jnp.int32) for x in leaves)
  assert after < before or model.config.dtype == jnp.bfloat16
  grads = trees.flatten(grads)
  for kind in options.get("norm_kw", {}).get("kinds", "").split("+"):
    mine = [x for name, x in grads.items() if f"/{kind}/" in name]
    assert not mine or any(x.any() for x in mine), kind


CELLS = [(False, "tok"), (True, "gap"), (True, "tok"), (False, "gap")]


def _cells():
  for i, case in enumerate(CASES):
    for j, (scan, pool) in enumerate(CELLS):
      # The fast tests have one of the four, each in turn.
      marks = [pytest.mark.slow] if j != i % 4 else []
      if not (scan and case in ("mix_ln", "keel")):  # refused: other blocks
        yield pytest.param(case, scan, pool, marks=marks)


@pytest.mark.parametrize(("case", "scan", "pool"), [*_cells()])
def test_two_steps(case, scan, pool):
  precision = {"scan": True, "dtype_mm": "bfloat16"} if scan else {}
  check_training(**CASES[case], **precision, pool_type=pool)


@pytest.mark.parametrize("case", OTHERS)
def test_other_pools(case):
  check_training(**OTHERS[case])


def test_every_choice_is_tried():
  tables = {
    **vit.Config.CHOICES,
    "weight_init": init.INITS,
    **{"gelu": mlp.GELUS, "mlp": mlp.MLPS},
    "logit_scale": attention.LOGIT_SCALES,
    "weight_norm": WEIGHT_NORMS,
    "stem_ln": stem.STEM_LN,
  }
  # These differ from derf in one function, which has a test of its own.
  tables["norm"] = (norms.NORMS.keys() - pointwise.FUNCTIONS) | {"derf"}
  cases = [*CASES.values()]
  for key, table in tables.items():
    scanned = [c for c in cases if c["block_ln"] not in ("mix_ln", "keel")]
    for group in (cases, cases if key in ("block_ln", "stem_ln") else scanned):
      tried = {getattr(vit.Model(**o).config, key) for o in group}
      if key == "norm":
        kinds = [o.get("norm_kw", {}).get("kinds", "") for o in group]
        tried |= {*"+".join(kinds).split("+")}
      assert set(table) <= tried, key
  # "scan" and "dtype_mm" are in `CELLS`; cuDNN has no CPU; options of a choice
  # do not change what is called, but for those of blocks and positions.
  same = {"scan", "dtype_mm", "attn_impl", "stem_kw", "posemb_kw", "rope_kw"}
  same |= {"qk_norm_kw", "v_norm_kw", *SMALL}
  every = [vit.Model(5, **o).config for o in (*cases, *OTHERS.values())]
  for field in {f.name for f in dataclasses.fields(vit.Config)} - same:
    assert len({getattr(config, field) for config in every}) > 1, field
  pools = {o.get("pool_type", "gap") for o in OTHERS.values()}
  # "none" has labels for each token.
  assert pools | {"tok", "gap"} >= set(heads.POOL_TYPES) - {"none"}
