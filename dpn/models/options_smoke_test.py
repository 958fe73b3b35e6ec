"""Every option trains: looped, and scanned in half precision."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpn import trees
from dpn.models import norms, vit
from dpn.models.norms import power_norm

BLOCK_LN = [
  {"block_ln_kw": {"sa": "post", "mlp": "pre+post", "post": "stream"}},
  *({"block_ln": name} for name in ("normformer", "sub_ln", "cct")),
]
POSITIONS = [
  {"posemb": "sincos1d"},
  {"posemb": "sincos2d_lape", "posemb_join": "lape"},
  # From zero, where big_vision has it, a class token could only jump.
  {
    "posemb_join": "lape",
    "posemb_join_kw": {"share": True},
    "pool_type": "tok",
    "weight_init": "deit",
  },
  {"posemb": "rpe", "pool_type": "tok"},
  {"posemb": "rpe", "posemb_join": "lape", "pool_type": "map"},
]
OPTIONS = [
  *({"norm": kind, "pool_type": "tok"} for kind in norms.NORMS),
  *({**block, "stem_ln": "dpn"} for block in BLOCK_LN),
  *POSITIONS,
  {"pool_type": "seq", "weight_init": "cct", "stoch_depth": 0.2},
  {"attn_dropout": 0.1, "dropout": 0.1, "qkv_bias": False},
]
SMALL = {"width": 16, "depth": 2, "num_heads": 2, "patch_size": (4, 4)}
IMAGE = np.random.RandomState(0).uniform(-1, 1, (4, 8, 8, 3)).astype("float32")
LABELS = np.eye(5, dtype="float32")[[0, 1, 2, 3]]
STATE = ("batch_stats", power_norm.OVERWRITE_WITH_GRADIENT)


def name(options):
  return " ".join(f"{k}={v}" for k, v in options.items())


def train(options, steps=2, **more):
  """Returns the losses and last variables of a few short steps of SGD."""
  model = vit.Model(5, head_zeroinit=False, **{**SMALL, **options, **more})
  variables = jax.jit(model.init)(jax.random.key(0), IMAGE)
  overwrite = power_norm.OVERWRITE_WITH_GRADIENT

  @jax.jit
  def step(variables, key):
    state = {k: v for k, v in variables.items() if k in STATE}

    def loss_fn(params, overwritten):
      (logits, _), new = model.apply(
        {**state, "params": params, **overwritten},
        IMAGE,
        train=True,
        rngs={"dropout": key},
        mutable=list(state),
      )
      return -(LABELS * jax.nn.log_softmax(logits)).sum(-1).mean(), new

    overwritten = {k: v for k, v in state.items() if k == overwrite}
    (loss, new), (grads, overwritten) = jax.value_and_grad(
      loss_fn, argnums=(0, 1), has_aux=True
    )(variables["params"], overwritten)
    rate = 0.003 / trees.l2(grads)
    sgd = lambda p, g: p - rate * g
    params = jax.tree.map(sgd, variables["params"], grads)
    return loss, {**new, **overwritten, "params": params}

  losses = []
  for _ in range(steps):
    # The same mask each time: the loss must fall.
    loss, variables = step(variables, jax.random.key(1))
    losses.append(loss)
  return np.array(losses), variables


@pytest.mark.parametrize("options", OPTIONS, ids=name)
def test_two_steps(options):
  losses, variables = train(options)
  assert losses[1] < losses[0]
  assert all(np.isfinite(v).all() for v in jax.tree.leaves(variables))


@pytest.mark.parametrize("options", OPTIONS, ids=name)
def test_scanned_in_half_precision(options):
  losses, variables = train(options, scan=True, dtype_mm="bfloat16")
  leaves = jax.tree.leaves(variables)
  assert np.isfinite(losses).all()
  assert all(np.isfinite(v).all() for v in leaves)
  assert all(v.dtype in (jnp.float32, jnp.int32) for v in leaves)


@pytest.mark.parametrize(
  "options",
  [{"norm": "powernorm"}, {"posemb_join": "lape"}, {"block_ln": "sub_ln"}],
  ids=name,
)
def test_recomputed(options):
  losses, _ = train(options, scan=True)
  again, _ = train(options, scan=True, remat_policy="nothing_saveable")
  np.testing.assert_allclose(losses, again, rtol=1e-5)


def stack(variables):
  """Returns looped variables in the layout of scanned ones."""
  stacked = {}
  for collection, tree in variables.items():
    blocks = [tree["Transformer"][f"encoderblock_{i}"] for i in range(2)]
    rest = {
      k: v
      for k, v in tree["Transformer"].items()
      if not k.startswith("encoderblock_")
    }
    rest["encoderblock"] = jax.tree.map(lambda *x: jnp.stack(x), *blocks)
    stacked[collection] = {**tree, "Transformer": rest}
  return stacked


@pytest.mark.parametrize(
  "options",
  [
    {"norm": "powernorm", "norm_kw": {"warmup": 1}, "pool_type": "tok"},
    {"norm": "switchable", "remat_policy": "dots_saveable"},
    {"posemb_join": "lape", "pool_type": "tok"},
    {"block_ln": "sub_ln", "norm": "dtn"},
  ],
  ids=name,
)
def test_scan_is_the_loop(options):
  key = jax.random.key(0)
  looped = vit.Model(5, head_zeroinit=False, **SMALL, **options)
  scanned = vit.Model(5, head_zeroinit=False, scan=True, **SMALL, **options)
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
  assert collections("powernorm") == {"params", *STATE}
