"""A class token that enters late, as in DTN's models (arXiv 2112.02624).

Norms between tokens see patches alone; the class token is prepended before the
last `cls_blocks` blocks, which use LayerNorm whatever `norm` is.
"""

import dataclasses

import flax.linen as nn
import jax.numpy as jnp

from dpn.models import encoder


class Encoder(encoder.Encoder):
  """An encoder whose last `config.cls_blocks` blocks see the class token."""

  @nn.compact
  def __call__(self, x, deterministic=True, *, tokens, cls):
    """As `encoder.Encoder`; `cls` is the class token, (batch, 1, width)."""
    config, depth = self.config, self.config.depth
    first = depth - config.cls_blocks
    early, late = range(first), range(first, depth)
    (x, _), out = self.loop((x, None), deterministic, tokens, config, early)

    x = jnp.concatenate([cls, x], axis=1)  # (batch, 1 + tokens, width)
    tokens = dataclasses.replace(tokens, cls=True)
    layernorm = {"norm": "layernorm", "norm_kw": {"eps": config.eps}}
    config = dataclasses.replace(config, **layernorm)
    (x, _), more = self.loop((x, None), deterministic, tokens, config, late)
    return self.finish(x, out | more, tokens, deterministic)


def check(config):
  """Raises ValueError if a `vit.Config` has options this cannot use."""
  if (
    not 0 < config.cls_blocks < config.depth
    or not config.has_cls
    or config.join.cls
    or config.scan
  ):
    raise ValueError(
      f"cls_blocks={config.cls_blocks} needs pool_type='tok', scan=False, "
      "posemb_join='add' without cls, and more blocks than that; got "
      f"pool_type={config.pool_type!r}, scan={config.scan}, "
      f"posemb_join={config.posemb_join!r}, depth={config.depth}."
    )
