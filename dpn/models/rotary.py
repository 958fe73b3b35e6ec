"""Rotary positions in two dimensions: queries and keys turned by their angles.

Channels of a head make d / 2 pairs (a, b). A pair of a patch at (row, col) is
turned by an angle t: (a cos t - b sin t, b cos t + a sin t), so that queries
times keys depend on differences of positions (arXiv 2104.09864, 2403.13298).

Models differ in angles and pairs, which are options: `rope`, `rope_kw`. With
others than it was trained with, a model degrades silently.
"""

import math
from typing import Literal

import einops
import flax.linen as nn
import jax.numpy as jnp
import numpy as np

# Which channels make a pair, as (2, pairs): neighbours (EVA, ViT-5); the halves
# of the head (DINOv3); the halves of the channels of each axis (Gemma 4).
PAIRS = {
  "interleaved": ("b t h (f r) -> r b t h f", {}),
  "halves": ("b t h (r f) -> r b t h f", {}),
  "axes": ("b t h (a r f) -> r b t h (a f)", {"a": 2}),
}
Pairs = Literal["interleaved", "halves", "axes"]


def rotate(x, angles, pairs: str):
  """Returns queries or keys x (batch, tokens, heads, d), turned by angles.

  `angles` are (tokens, heads or 1, d / 2) in radians, `pairs` one of `PAIRS`.
  """
  pattern, sizes = PAIRS[pairs]
  wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
  a, b = einops.rearrange(wide, pattern, r=2, **sizes)
  angles = jnp.asarray(angles, wide.dtype)[None]
  cos, sin = jnp.cos(angles), jnp.sin(angles)
  y = jnp.stack([a * cos - b * sin, b * cos + a * sin])
  before, _, after = pattern.partition(" -> ")
  return einops.rearrange(y, f"{after} -> {before}", **sizes).astype(x.dtype)


def axial(
  module,
  tokens,
  d,
  *,
  base: float = 10_000.0,
  coordinates: Literal["index", "centred"] = "index",
  pairs: Pairs = "interleaved",
  first: Literal["row", "col"] = "row",
  native_side: int = 0,
  register_base: float = 0.0,
):
  """Returns angles: half of the pairs turn by row, the other half by column.

  Frequencies are base^(-4i / d), i = 0 … d / 4 - 1. EVA, ViT-5: the defaults;
  DINOv3: `centred`, `halves`, base 100; Gemma 4: `axes`, `col`, base 100.

  Args:
    module: the calling `attention.Attention`.
    tokens: the `norms.TokenGrid`. A class token is not turned.
    d: channels of a head, a multiple of 4.
    base: of the frequencies.
    coordinates: rows and columns by their `index`; or `centred`, from -2 pi to
      2 pi between the edges of the image.
    pairs: one of `PAIRS`.
    first: the coordinate that turns the first half of the pairs.
    native_side: rows and columns of the training grid, to which other grids are
      rescaled; 0 to take indices as they are.
    register_base: the base for registers, which form a square grid of their
      own, such as ViT-5's 100; 0 not to turn registers.

  Returns:
    (tokens, 1, d / 2) angles, and `pairs`.
  """
  if native_side and coordinates == "centred":
    raise ValueError(
      "rope_kw.native_side squeezes coordinates='index'; centred ones do not "
      "depend on the grid. Leave one out."
    )
  side = math.isqrt(tokens.registers)
  if register_base and (not side or side**2 != tokens.registers):
    raise ValueError(
      "rope_kw.register_base makes a square grid of the registers, got "
      f"registers={tokens.registers}. Use 4, or leave it out."
    )

  def grid(shape, base, native):
    positions = []
    for i, size in enumerate(shape):
      x = np.arange(size, dtype=np.float64)
      if coordinates == "centred":
        x = 2 * math.pi * (2 * (x + 0.5) / size - 1)
      elif native:
        x = x / size * native
      positions.append(np.expand_dims(x, 1 - i))
    axes = [np.broadcast_to(x, shape).ravel() for x in positions]
    axes = axes if first == "row" else axes[::-1]
    frequencies = base ** -(np.arange(0, d, 4) / d)
    return np.concatenate([x[:, None] * frequencies for x in axes], axis=1)

  others = np.zeros((sum(tokens.around), d // 2))
  if register_base:
    others[int(tokens.cls) :] = grid((side, side), register_base, 0)
  patches = grid(tokens.grid, base, native_side)
  return tokens.join(others[None], patches[None])[0][:, None], pairs


def mixed(
  module, tokens, d, *, base: float = 10.0, pairs: Pairs = "interleaved"
):
  """Returns angles of learned frequencies (arXiv 2403.13298, Section 3.3).

  Each block has `rope_freqs` (2, heads, d / 2), for rows and for columns.
  Pairs start in random directions, with magnitudes base^(-4i / d). Arguments
  and result as in `axial`; registers are not turned.
  """

  def init(key, shape, dtype=float):
    sizes = np.tile(base ** -(np.arange(0, d, 4) / d), 2).astype(dtype)[None]
    turn = nn.initializers.uniform(2 * math.pi)(key, (shape[1], 1), dtype)
    angles = turn + (np.arange(d // 2) // (d // 4))[None] * (math.pi / 2)
    return jnp.stack([sizes * jnp.cos(angles), sizes * jnp.sin(angles)])

  freqs = module.param("rope_freqs", init, (2, module.num_heads, d // 2))
  rows, cols = (x.reshape(-1, 1, 1) for x in np.indices(tokens.grid))
  patches = rows * freqs[0][None] + cols * freqs[1][None]
  around = (tokens.around, (0, 0), (0, 0))
  return jnp.pad(patches, around), pairs


# Functions (module, tokens, d) → (angles, pairs); other arguments are options.
ROPES = {
  "none": lambda module, tokens, d: (None, None),
  "axial": axial,
  "mixed": mixed,
}
