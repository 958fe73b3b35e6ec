"""Relative positions, as a bias of the attention's logits."""

from typing import Any

import flax.linen as nn
import jax.numpy as jnp
import numpy as np

from dpn.models import norms
from dpn.models.norms import base


class RelativeBias(nn.Module):
  """A learned number for every offset and head, added to attention's logits.

  arXiv 2103.14030, Equation 4, between patches; a class token's logits are
  left alone.

  Attributes:
    layout: of the tokens.
    normalize: LaPE's form (arXiv 2212.05262): a LayerNorm over the keys.
    dtype: of the tokens; the result is in float32 or wider.
  """

  layout: base.Layout
  normalize: bool = False
  dtype: Any = jnp.float32

  @nn.compact
  def __call__(self):  # → (1, heads, queries, keys)
    rows, cols = self.layout.grid
    table = self.param(
      "table",
      nn.initializers.zeros,
      ((2 * rows - 1) * (2 * cols - 1), self.layout.num_heads),
    )
    table = table.astype(jnp.promote_types(table.dtype, self.dtype))
    bias = table[relative_index(rows, cols)].transpose(2, 0, 1)
    if self.normalize:
      bias = norms.make("layernorm,eps=1e-5", name="pe_norm")(bias)
    cls = (int(self.layout.cls), 0)
    return jnp.pad(bias, ((0, 0), cls, cls))[None]


def relative_index(rows: int, cols: int):
  """Returns which table row belongs to (query, key), both row-major."""
  y, x = np.divmod(np.arange(rows * cols), cols)
  dy = y[:, None] - y[None, :] + rows - 1
  dx = x[:, None] - x[None, :] + cols - 1
  return dy * (2 * cols - 1) + dx
