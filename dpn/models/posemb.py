"""Position embeddings."""

import dataclasses

import flax.linen as nn
import jax.numpy as jnp
import numpy as np

from dpn import options


def sincos1d(tokens: int, width: int, temperature: float = 10_000.0):
  """Returns the table of arXiv 1706.03762, Section 3.5.

  Channels 2i and 2i + 1 hold the sine and cosine of
  position * temperature^(-2i / width).

  Returns:
    (1, tokens, width) float64 NumPy array.
  """
  channel = np.arange(width)
  angle = np.arange(tokens)[:, None] / temperature ** (channel // 2 * 2 / width)
  return np.where(channel % 2, np.cos(angle), np.sin(angle))[None]


def sincos2d(rows: int, cols: int, width: int, temperature: float = 10_000.0):
  """Returns the fixed 2-D table of MoCo v3 (arXiv 2104.02057), as big_vision.

  Frequencies are temperature^(-i / (width/4 - 1)), i = 0 … width/4 - 1; the
  four quarters of the width hold sin x, cos x, sin y, cos y.

  Returns:
    (1, rows * cols, width) float64 NumPy array, row-major.
  """
  if width % 4 or width < 8:
    raise ValueError(
      f"posemb='sincos2d' needs a width that is a multiple of 4 and at least "
      f"8, got {width}."
    )
  omega = temperature ** -np.linspace(0, 1, width // 4)
  y, x = np.mgrid[:rows, :cols].reshape(2, -1, 1) * omega  # (tokens, width/4)
  table = np.concatenate([np.sin(x), np.cos(x), np.sin(y), np.cos(y)], axis=1)
  return table[None]


def sincos2d_lape(rows: int, cols: int, width: int):
  """Returns the 2-D table LaPE's models were trained with (arXiv 2212.05262).

  The first half of the width is `sincos1d` of the column, the other half that
  of the row.

  Returns:
    (1, rows * cols, width) float64 NumPy array, row-major.
  """
  if width % 4:
    raise ValueError(
      f"posemb='sincos2d_lape' needs a width that is a multiple of 4, got "
      f"{width}."
    )
  table = sincos1d(max(rows, cols), width // 2)[0]
  y, x = np.mgrid[:rows, :cols].reshape(2, -1)
  return np.concatenate([table[x], table[y]], axis=1)[None]


@dataclasses.dataclass(frozen=True)
class Learn:
  """A parameter, N(0, std^2); std is 1 / sqrt(width) unless given."""

  std: float | None = None

  def table(self, module, grid, width, cls):
    init = nn.initializers.normal(self.std or width**-0.5)
    tokens = grid[0] * grid[1] + cls
    return module.param("pos_embedding", init, (1, tokens, width))


@dataclasses.dataclass(frozen=True)
class Sincos1d:
  """`sincos1d` of the tokens; a class token is the first of them."""

  def table(self, module, grid, width, cls):
    return as_constant(sincos1d(grid[0] * grid[1] + cls, width))


@dataclasses.dataclass(frozen=True)
class Sincos2d:
  """`sincos2d`; the row of a class token is zero."""

  def table(self, module, grid, width, cls):
    return as_constant(sincos2d(*grid, width), zero_rows=cls)


@dataclasses.dataclass(frozen=True)
class Sincos2dLape:
  """`sincos2d_lape`; the row of a class token is zero."""

  def table(self, module, grid, width, cls):
    return as_constant(sincos2d_lape(*grid, width), zero_rows=cls)


@dataclasses.dataclass(frozen=True)
class Relative:
  """No absolute position: a `RelativeBias` in every block instead."""

  def table(self, module, grid, width, cls):
    return None


def as_constant(table, zero_rows=0):
  """Returns a (1, tokens, width) array, after `zero_rows` rows of zeros."""
  table = np.pad(table, ((0, 0), (zero_rows, 0), (0, 0)))
  return jnp.asarray(table, jnp.float32)


KINDS = {
  "learn": Learn,
  "sincos1d": Sincos1d,
  "sincos2d": Sincos2d,
  "sincos2d_lape": Sincos2dLape,
  "rpe": Relative,
}


def get_kind(text: str):
  """Returns the instance of one of `KINDS` that `text` stands for."""
  return options.parse("posemb", text, KINDS)()


def is_relative(text: str) -> bool:
  """Returns whether `text` stands for positions relative to each other."""
  return isinstance(get_kind(text), Relative)


def get(
  module: nn.Module,
  text: str,
  grid: tuple[int, int],
  width: int,
  cls: bool = False,
):
  """Returns the embedding (1, tokens, width), or None if it is relative.

  Args:
    module: in which a learned embedding becomes the parameter `pos_embedding`.
    text: one of `KINDS`, with options: `"learn,std=0.2"`.
    grid: (rows, cols) of the patches, row-major.
    width: of the tokens.
    cls: whether a first row is for the class token.
  """
  return get_kind(text).table(module, grid, width, int(cls))
