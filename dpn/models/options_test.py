"""Every option of a model changes the program or is refused: none is idle."""

import functools
import json
import typing

import jax
import numpy as np
import pytest

from dpn import registry
from dpn.models import (
  attention,
  encoder,
  heads,
  init,
  mlp,
  prefix,
  stem,
  vit,
  weight_norm,
)

IMAGE = jax.ShapeDtypeStruct((2, 8, 8, 3), np.float32)
BASE = {
  **{"width": 8, "depth": 1, "mlp_dim": 16, "num_heads": 2},
  **{"patch_size": (2, 2), "pool_type": "tok"},
}
# Other values of each option; those of choices are the names in their tables.
VALUES = {
  **{"width": [16], "depth": [2], "mlp_dim": [8], "num_heads": [4]},
  **{"gelu": mlp.GELUS, "mlp": mlp.MLPS},
  "head_dim": [5],
  "qkv_bias": [False],
  "logit_scale": attention.LOGIT_SCALES,
  "layer_scale": [0.1],
  **{"dropout": [0.1], "attn_dropout": [0.1]},
  **{"cls_blocks": [1], "stoch_depth": [0.1], "stoch_depth_grows": [False]},
  "weight_init": init.INITS,
  "scan": [True],
  "remat_policy": encoder.REMAT_POLICIES,
  "dtype_mm": ["bfloat16"],
  "attn_impl": ["cudnn"],  # auto is xla on a CPU
  "patch_size": [(4, 4)],
  "stem_ln": stem.STEM_LN,
  "stem_eps": [1e-3],
  "rep_size": [True, 5],
  "pool_type": heads.POOL_TYPES,
  "pool_norm": [True],
  **{"registers": [1], "registers_last": [True]},
  "prefix_norm": prefix.NORMS,
  **{"head_zeroinit": [False], "final_norm": [False]},
  "weight_norm": weight_norm.WEIGHT_NORMS,
  **vit.Config.CHOICES,
}


def program(**options):
  """Returns initialization and the gradient of training, traced, as text."""
  return _program(json.dumps(options))


@functools.cache
def _program(options):
  options = {**BASE, **json.loads(options)}
  model = vit.Model(5, **options)
  # Only the backward pass shows these; tracing it takes most of the time.
  norm = options.get("norm")
  backward = "remat_policy" in options or norm == "powernorm"
  backward |= options.get("stem") == "tract"
  # While these are initialized, their statistics stay as they are.
  running = norm in ("batchnorm", "switchable", "powernorm", "prepbn")
  running |= norm == "unifiednorm"

  def apply(variables, key, image):
    kw = {"rngs": {"dropout": key}, "mutable": ["batch_stats"]}
    (logits, _), state = model.apply(variables, image, train=True, **kw)
    return logits.sum(), state

  def run(key, image):
    if not backward and not running:
      rngs = {"params": key, "dropout": key}
      return model.init_with_output(rngs, image, train=True)
    variables = model.init(key, image)
    function = apply
    if backward:
      function = jax.value_and_grad(apply, has_aux=True, allow_int=True)
    return variables, function(variables, key, image)

  traced = jax.make_jaxpr(run)(jax.random.key(0), IMAGE)
  tables = [np.asarray(x).tobytes() for x in traced.consts if x.ndim]
  return f"{traced}\n{tables}"


def assert_changes(context, option, values):
  """Asserts that each value makes another program, or is refused."""
  programs = [program(**context)]
  for value in values:
    try:
      programs.append(program(**{**context, option: value}))
    except ValueError:
      continue
  equal = len(programs) - len(set(programs))
  assert not equal, (option, list(values), f"{equal} are idle")


def test_equal_models_are_equal_programs():
  assert program(depth=1) == program()


@pytest.mark.parametrize("option", sorted(VALUES))
def test_options(option):
  default = getattr(vit.Config(**BASE), option)
  context = CONTEXTS.get(option, {})
  assert_changes(context, option, [v for v in VALUES[option] if v != default])


def test_all_options_are_here():
  kw = {f"{choice}_kw" for choice in vit.Config.CHOICES}
  assert {*vit.HINTS} == VALUES.keys() | kw


def others(hint, default):
  """Returns values of a type hint besides the default."""
  if typing.get_origin(hint) is typing.Literal:
    return [x for x in typing.get_args(hint) if x != default]
  if hint is bool:
    return [not default]
  if hint == float | None:
    return [x for x in (0.3, None) if x != default]
  return [{int: 2 if default == 1 else 1, float: 0.3}[hint]]


CONTEXTS = {
  "block_ln": {"depth": 4},
  "cls_blocks": {"depth": 2},
  "stoch_depth": {"depth": 2},
  "stoch_depth_grows": {"depth": 2, "stoch_depth": 0.1},
  "stem_eps": {"stem_ln": "dpn"},
  "registers_last": {"registers": 1},
  "lape": {"depth": 2},  # for `share`
  "mix_ln": {"depth": 10},  # for `post_share`
  "placement": {"block_ln_kw": {"sa": "post"}},  # for `post`
  "conv": {"patch_size": (16, 16)},  # the default: it has none
  "hmlp": {"patch_size": (4, 4)},
  "specialized_cls": {"depth": 3},
  # With 4 channels a head there is one frequency, which is 1.
  **{"axial": {"width": 16, "registers": 4}, "mixed": {"width": 16}},
}


@pytest.mark.parametrize(
  ("choice", "name"),
  [(c, name) for c, table in vit.Config.CHOICES.items() for name in table],
)
def test_options_of_a_choice(choice, name):
  function, key = vit.Config.CHOICES[choice][name], f"{choice}_kw"
  context = {**CONTEXTS.get(name, {}), choice: name}
  defaults = registry.defaults(function)
  for option, hint in registry.options(function).items():
    before = context.get(key, {})
    values = [
      {**before, option: value} for value in others(hint, defaults[option])
    ]
    assert_changes(context, key, [v for v in values if v != before])


@pytest.mark.parametrize(
  ("context", "idle", "message"),
  [
    (
      {"pool_type": "gap"},
      {"posemb_join_kw": {"cls": True}},
      "pool_type='gap' has no class token",
    ),
    ({"posemb": "rpe"}, {"posemb_join_kw": {"cls": True}}, "posemb='rpe'"),
    (
      {"pool_type": "gap", "norm": "dtn"},
      {"norm_kw": {"cls": "layernorm"}},
      "'layernorm'}: DTN normalizes no class token",
    ),
    ({"stem": "conv"}, {"patch_size": (2, 2)}, "stem='conv' has no patches"),
  ],
)
def test_what_would_be_idle_is_refused(context, idle, message):
  base = {k: v for k, v in BASE.items() if k != "patch_size"}
  options = {**base, "variant": "B/4", **context, **idle}
  run = lambda key, x: vit.Model(5, **options).init(key, x)
  with pytest.raises(ValueError, match=message):
    jax.eval_shape(run, jax.random.key(0), IMAGE)
