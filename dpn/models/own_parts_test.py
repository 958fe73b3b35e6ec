"""Parts of one's own that do not fit are named, with what was expected."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpn.models import norms, stem, vit

SMALL = {"width": 16, "depth": 1, "num_heads": 2, "patch_size": (4, 4)}
IMAGE = np.zeros((2, 8, 8, 3), np.float32)
DICTIONARY = {"ln0": "layernorm"}
OF_A_FUNCTION = stem.StemLN(ln0=f"{__name__}:function")


def narrow(image, ln0, ln1, config):
  return jnp.zeros((2, 2, 2, 8))


def flat(image, ln0, ln1, config):
  return jnp.zeros((2, 4, 16))


def one_position(grid, width, cls):
  return jnp.zeros((1, 1, width))


class Pooled(norms.Normalizer):
  @nn.compact
  def __call__(self, x, train=False):
    return x.mean(1, keepdims=True)


def function(x):
  return x


def nothing():
  return None


def shapes(**options):
  model = vit.Model(5, **SMALL, **options)
  return jax.eval_shape(model.init, jax.random.key(0), IMAGE)


@pytest.mark.parametrize(
  ("option", "own", "message"),
  [
    ("stem", "narrow", r"returned tokens of shape \(2, 2, 2, 8\).*width=16"),
    ("stem", "flat", r"returned tokens of shape \(2, 4, 16\)"),
    ("posemb", "one_position", r"of shape \(1, 1, 16\), expected.*\(1, 4, 16"),
    ("norm", "Pooled", r"returned \(2, 1, 16\) for \(2, 4, 16\)"),
    ("norm", "function", "expected a subclass of norms.Normalizer"),
    ("qk_norm", "function", "expected a subclass of norms.Normalizer"),
    ("block_ln", "function", "called without arguments; got TypeError"),
    ("block_ln", "nothing", "returns a Placement.*got None"),
    ("stem_ln", "DICTIONARY", "expected a StemLN"),
    ("stem_ln", "OF_A_FUNCTION", "expected a subclass of norms.Normalizer"),
  ],
)
def test_refused(option, own, message):
  with pytest.raises(ValueError, match=rf"{option}=.*{message}"):
    shapes(**{option: f"{__name__}:{own}"})


def test_patches_of_one_colour_have_gradients():
  model = vit.Model(5, **SMALL, stem="patch_stats", head_zeroinit=False)
  variables = model.init(jax.random.key(0), IMAGE)
  total = lambda image: model.apply(variables, image)[0].sum()
  gradient = jax.grad(total)(jnp.asarray(IMAGE))
  assert np.isfinite(gradient).all()
  assert np.abs(gradient).max() > 0
