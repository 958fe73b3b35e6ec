"""Dynamic Token Normalization (arXiv 2112.02624, Section 3).

Every head mixes, by learned ratios, the statistics within a token (LayerNorm's)
with statistics between tokens: means weighted by a learned function of their
relative position.

Differs from the paper in the same way as the authors' released layer
(`form=paper` follows the equations instead): each head's channels are first
divided by their root mean square, also in the numerator; the variance within a
token is unbiased. Both layers have one mixing ratio for means and another for
variances; Equation 8 has a single one. The position scores have no additive
constant, since it would cancel in their softmax.
"""

import math
from typing import Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from dpn.models.norms import base


def local_init(key, shape, dtype=jnp.float32):
  """Returns position weights (3, heads) that look at one neighbour each.

  Head k1 + K * k2, with K = floor(sqrt(heads)), scores -|delta - offset|^2 for
  offset = (k2, k1) - (K - 1) / 2. The heads beyond K * K start near zero.
  """
  num_heads = shape[1]
  side = math.isqrt(num_heads)
  k2, k1 = np.array(np.divmod(np.arange(side**2), side)) - (side - 1) / 2
  local = np.stack([2 * k2, 2 * k1, -np.ones_like(k1)])
  rest = nn.initializers.normal(0.02)(key, (3, num_heads - side**2), dtype)
  return jnp.concatenate([jnp.asarray(local, dtype), rest], axis=1)


INITS = {"local": local_init, "released": nn.initializers.normal(0.02)}


def relative_positions(rows: int, cols: int):
  """Returns dx, dy, dx^2 + dy^2 of target minus source, row-major.

  Returns:
    (targets, sources, 3) float32.
  """
  y, x = jnp.divmod(jnp.arange(rows * cols), cols)
  dx = x[:, None] - x[None, :]
  dy = y[:, None] - y[None, :]
  return jnp.stack([dx, dy, dx**2 + dy**2], axis=-1).astype(jnp.float32)


class DTN(base.Normalizer):
  """(x - mu) / sqrt(var + eps) * scale + bias of (batch, tokens, width).

  Attributes:
    cls: how a class token is normalized. `intra`: like the patches, with all
      weight within the token; `layernorm`: by a LayerNorm with the same scale
      and bias. (In the released models it joins the patches only for the last
      two blocks, which have LayerNorm: the model option `cls_blocks=2`.)
    pos_init: initial position weights. `local`: the paper's, each head looks at
      a neighbour; `released`: N(0, 0.02), as the released models end up.
    form: `released` or the `paper`'s equations, see the module.
    only_var: between tokens, take the variance only; means are the token's own.
    pool_grid: larger grids are averaged over cells, to about this side, before
      statistics between tokens are taken.
  """

  PER_TOKEN = False

  cls: Literal["intra", "layernorm"] = "intra"
  pos_init: Literal["local", "released"] = "local"
  form: Literal["released", "paper"] = "released"
  only_var: bool = False
  pool_grid: int = 14

  @nn.compact
  def __call__(self, x, train=False):  # (batch, tokens, width)
    x = self.upcast(x)
    first, released = sum(self.tokens.around) > 0, self.form == "released"
    if self.cls != "intra" and not first:
      raise ValueError(
        f"norm_kw={{'cls': {self.cls!r}}}: DTN normalizes no class token here."
      )
    cls, patches = self.tokens.split(x)  # registers are as the class token
    patches = self.rms(patches)
    mean, var = self.within(patches, unbiased=released)
    mean_between, var_between = self.between(patches)
    if not self.only_var:
      mean = self.mix("mean_ratio", mean, mean_between)
    var = self.mix("var_ratio", var, var_between)
    y = (patches - mean) * jax.lax.rsqrt(var + self.eps)
    if first:
      intra = self.cls == "intra"
      cls = self.rms(cls) if intra else cls
      mean, var = self.within(cls, unbiased=intra and released)
      cls = (cls - mean) * jax.lax.rsqrt(var + self.eps)
      y = self.tokens.join(cls, y)
    return self.scale_and_bias(y)

  def rms(self, x):
    if self.form == "paper":
      return x
    return base.group_rms(x, self.tokens.num_heads, self.eps)

  def within(self, x, unbiased):
    """Returns mean and variance of each token, (batch, tokens, 1)."""
    mean = x.mean(axis=-1, keepdims=True)
    square = jnp.square(x - mean).sum(axis=-1, keepdims=True)
    return mean, square / (x.shape[-1] - unbiased)

  def between(self, x):
    """Returns mean and variance around each position, (batch, tokens, width).

    Equation 5, weighted as Equation 6 says.
    """
    batch, _, width = x.shape
    rows, cols = self.tokens.grid
    if self.pool_grid < 1:
      raise ValueError(f"dtn got pool_grid={self.pool_grid}, expected >= 1.")
    pool = max(1, min(rows, cols) // self.pool_grid)
    if rows % pool or cols % pool:
      raise ValueError(
        f"norm='dtn' averages a {rows}x{cols} grid over {pool}x{pool} cells, "
        f"which must fit into it. Change the image size, or pool_grid (now "
        f"{self.pool_grid})."
      )
    cells = x.reshape(batch, rows // pool, pool, cols // pool, pool, width)
    cells = cells.mean(axis=(2, 4)).reshape(batch, -1, width)
    cells = base.split_heads(cells, self.tokens.num_heads)

    weights = self.position_weights(rows // pool, cols // pool, x.dtype)

    # E[x^2] - E[x]^2 needs full precision.
    highest = {"precision": jax.lax.Precision.HIGHEST}
    average = lambda v: jnp.einsum("hts,bshc->bthc", weights, v, **highest)
    mean = average(cells)
    var = jnp.maximum(average(jnp.square(cells)) - jnp.square(mean), 0)

    def unpool(v):
      v = v.reshape(batch, rows // pool, cols // pool, width)
      v = v.repeat(pool, axis=1).repeat(pool, axis=2)
      return v.reshape(x.shape)

    return unpool(mean), unpool(var)

  def position_weights(self, rows, cols, dtype):
    """Returns (heads, targets, sources) weights that sum to 1 over sources."""
    scores = nn.Dense(
      self.tokens.num_heads,
      use_bias=False,
      dtype=dtype,
      precision=jax.lax.Precision.HIGHEST,
      kernel_init=INITS[self.pos_init],
      name="pos_proj",
    )(relative_positions(rows, cols))
    return nn.softmax(scores.transpose(2, 0, 1), axis=-1)

  def mix(self, name, within, between):
    """Returns ratio * within + (1 - ratio) * between, Equation 8."""
    heads = self.tokens.num_heads
    # Ratios start at 1/2.
    logits = self.param(name, nn.initializers.zeros, (heads,))
    ratio = nn.sigmoid(logits.astype(between.dtype))
    ratio = ratio.repeat(between.shape[-1] // heads)[None, None]
    return ratio * within + (1 - ratio) * between
