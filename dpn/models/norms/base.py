"""What all normalizers share: statistics in float32, scale and bias."""

import dataclasses
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from dpn.models.broadcast import over_batch


@dataclasses.dataclass(frozen=True)
class TokenGrid:
  """How the tokens of (batch, tokens, width) are arranged.

  Attributes:
    num_heads: attention heads, by which head-wise norms group the channels.
    grid: (rows, cols) of the patches, which are tokens in row-major order.
    cls: whether a class token precedes the patches.
    registers: number of registers, learned tokens whose outputs are not used.
    registers_last: whether registers follow the patches; else they stand
      between the class token and the patches.
    prefix_norm: see `vit.Config`.
  """

  num_heads: int = 1
  grid: tuple[int, int] = (1, 1)
  cls: bool = False
  registers: int = 0
  registers_last: bool = False
  prefix_norm: str = "shared"

  @property
  def around(self) -> tuple[int, int]:
    """How many tokens precede and follow the patches."""
    last = self.registers if self.registers_last else 0
    return int(self.cls) + self.registers - last, last

  def split(self, x):
    """Returns the tokens around the patches, then the patches, of x."""
    before, after = self.around
    end = x.shape[1] - after
    others = jnp.concatenate([x[:, :before], x[:, end:]], axis=1)
    return others, x[:, before:end]

  def join(self, others, patches):
    """Returns (batch, tokens, …) from the two results of `split`."""
    at = self.around[0]
    return jnp.concatenate([others[:, :at], patches, others[:, at:]], axis=1)

  def apart(self, make, name, x):
    """Returns make(name)(patches) joined to make(name + "_prefix")(others)."""
    if not sum(self.around):
      return make(name)(x)
    others, patches = self.split(x)
    return self.join(make(f"{name}_prefix")(others), make(name)(patches))

  def insert_registers(self, x, registers):
    """Returns x (batch, tokens, width) with `registers` (1, n, width)."""
    at = x.shape[1] if self.registers_last else int(self.cls)
    registers = over_batch(registers.astype(x.dtype), x.shape[0])
    return jnp.concatenate([x[:, :at], registers, x[:, at:]], axis=1)

  def take_registers(self, x):
    """Returns x without its registers, and the registers."""
    end = x.shape[1] if self.registers_last else self.around[0]
    at = end - self.registers
    return jnp.concatenate([x[:, :at], x[:, end:]], axis=1), x[:, at:end]


class Normalizer(nn.Module):
  """Base of all normalizers of (…, width), called as norm(x, train=False).

  The further fields of a subclass are its options, set by `norm_kw`.

  Attributes:
    eps: avoids division by zero; added to the variance unless a subclass says
      otherwise.
    tokens: how the tokens are arranged, for norms that look beyond one token.
    dtype: of the result. None: the promoted type of input and parameters.
    scale_init: factor on the initial value of `scale`.
  """

  # Not options: the model sets them.
  RESERVED: ClassVar[tuple[str, ...]] = ("tokens", "dtype", "scale_init")
  PER_TOKEN = True  # statistics are of each token alone, as stems require

  eps: float = 1e-5
  tokens: TokenGrid = TokenGrid()
  dtype: Any = None
  scale_init: float = 1.0

  def upcast(self, x):
    """Returns x in float32 or wider, in which all statistics are taken."""
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))

  def scale_and_bias(self, y, multiplier=1.0):
    """Returns y * multiplier * scale + bias in the normalizer's dtype."""
    return self.bias(self.scale(y, multiplier))

  def scale(self, y, multiplier=1.0, init=nn.initializers.ones, scalar=False):
    shape = (1,) if scalar else (y.shape[-1],)
    start = lambda *args: self.scale_init * init(*args)
    scale = self.param("scale", start, shape)
    return y * (multiplier * along_width(scale, y))

  def bias(self, y):
    bias = self.param("bias", nn.initializers.zeros, (y.shape[-1],))
    return self.cast(y + along_width(bias, y))

  def cast(self, y):
    return y.astype(self.dtype or y.dtype)


def along_width(vector, x):
  """Returns a vector of shape (width,) broadcastable to x (…, width)."""
  return vector.reshape((1,) * (x.ndim - 1) + (-1,))


def batch_axes(x):
  """Returns all axes of x (…, width) but the last: of batch and tokens."""
  return tuple(range(x.ndim - 1))


def split_heads(x, num_heads: int):
  """Reshapes (…, width) to (…, heads, width / heads)."""
  if x.shape[-1] % num_heads:
    raise ValueError(
      f"A norm that groups channels by heads was given {x.shape[-1]} of them; "
      f"expected a multiple of num_heads={num_heads}."
    )
  return x.reshape(*x.shape[:-1], num_heads, -1)


def group_rms(x, num_heads: int, eps: float):
  """Returns x / sqrt(mean(x^2) + eps), the mean over each head's channels."""
  g = split_heads(x, num_heads)
  mean_square = jnp.square(g).mean(axis=-1, keepdims=True)
  return (g / jnp.sqrt(mean_square + eps)).reshape(x.shape)


def center(x, eps, axis, ddof=0):
  """Returns x - mean and 1 / sqrt(var + eps) over `axis`.

  Their product has mean 0 and variance 1; callers first fold in the scale.
  """
  y = x - x.mean(axis, keepdims=True)
  var = jnp.square(y).mean(axis, keepdims=True)
  if ddof:
    count = x.shape[axis]
    var = var * (count / max(count - ddof, 1))
  return y, jax.lax.rsqrt(var + eps)
