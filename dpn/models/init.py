"""Weight initialization, by the code base that a model comes from."""

from collections.abc import Callable
from typing import NamedTuple

import flax.linen as nn
import jax


class Inits(NamedTuple):
  """Initializers of one code base.

  Attributes:
    embedding: of the patch embedding's kernel.
    dense: of the kernels of attention and MLP.
    mlp_bias: of the biases of the MLP.
    cls: of the class token.
    head: of the classifier's kernel, unless that starts at zero.
    registers: of the registers.
    posemb: width → the initializer of learned position embeddings.
    embedding_bias: numbers in a patch → the initializer of the patch
      embedding's bias. All other biases start at zero.
    whitens: whether a run fits the embedding to the patches of its training
      images before the first step, see `whitening.embedding`.
  """

  embedding: Callable
  dense: Callable
  mlp_bias: Callable
  cls: Callable
  head: Callable
  registers: Callable = nn.initializers.normal(0.02)
  posemb: Callable[[int], Callable] = lambda width: nn.initializers.normal(
    width**-0.5
  )
  embedding_bias: Callable[[int], Callable] = lambda fan_in: (
    nn.initializers.zeros
  )
  whitens: bool = False


# PyTorch truncates at 2, not at 2 standard deviations: this is a plain normal.
_NORMAL = nn.initializers.normal(0.02)
_ZEROS = nn.initializers.zeros


def _torch_bias(fan_in):
  """Returns PyTorch's initializer of a bias: uniform up to 1 / sqrt(fan_in)."""

  def init(key, shape, dtype=float):
    bound = fan_in**-0.5
    return jax.random.uniform(key, shape, dtype, -bound, bound)

  return init


INITS = {
  "big_vision": Inits(
    embedding=nn.initializers.lecun_normal(),
    dense=nn.initializers.xavier_uniform(),
    mlp_bias=nn.initializers.normal(1e-6),
    cls=_ZEROS,
    head=nn.initializers.lecun_normal(),
  ),
  # arXiv 2012.12877; the embedding is PyTorch's default convolution.
  "deit": Inits(
    embedding=nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform"),
    dense=_NORMAL,
    mlp_bias=_ZEROS,
    cls=_NORMAL,
    head=_NORMAL,
    posemb=lambda width: _NORMAL,
    embedding_bias=_torch_bias,
  ),
  # arXiv 2104.05704
  "cct": Inits(
    embedding=nn.initializers.he_normal(),
    dense=_NORMAL,
    mlp_bias=_ZEROS,
    cls=_ZEROS,
    head=_NORMAL,
    posemb=lambda width: nn.initializers.normal(0.2),
    embedding_bias=_torch_bias,
  ),
}


# Any orthogonal matrix whitens patches that are already white.
INITS["whiten"] = INITS["big_vision"]._replace(
  embedding=nn.initializers.orthogonal(), whitens=True
)


def scaled(init: Callable, gain: float) -> Callable:
  """Returns `init` with its values multiplied by `gain`."""
  if gain == 1:
    return init
  return lambda *args, **kw: gain * init(*args, **kw)
