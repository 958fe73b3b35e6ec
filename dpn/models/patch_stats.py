"""Mean and standard deviation of patches as separate inputs.

A LayerNorm in front of the patch embedding removes both (docs/patch_stats.md).
"""

from typing import Literal

import flax.linen as nn
import jax.numpy as jnp

Statistics = Literal["mean+std", "mean", "std"]
INIT_GAIN = 0.5**0.5  # as in a dense layer of two inputs


def embed(patches, groups, config, statistics: Statistics, init_gain: float):
  """Returns an embedding (…, width) of patches' statistics, to add to tokens.

  Creates the dense layer `patch_stats` in the module that calls it.

  Args:
    patches: (…, pixels * groups), flattened with the channel last.
    groups: number of channels, to treat each separately; or 1, for all pixels.
    config: the `vit.Config`.
    statistics: which to embed.
    init_gain: initial weight of a patch's mean in its token; 1 is the weight in
      a plain ViT with `weight_init="big_vision"`, 1.7 times the weight in one
      with "deit", and 0.7 times with "cct".

  Raises:
    ValueError: if the gain is not above 0.
  """
  if not init_gain > 0:
    raise ValueError(f"stem_kw.init_gain must be above 0, got {init_gain}.")
  chosen = statistics.split("+")
  pixels = patches.reshape(*patches.shape[:-1], -1, groups)
  stats = jnp.concatenate([_STATISTICS[s](pixels) for s in chosen], -1)
  # A plain ViT multiplies a channel's mean by a sum of weights, whose variance
  # is 1 / channels; so the variance here is init_gain ** 2 / groups.
  scale = init_gain**2 * len(chosen)
  init = nn.initializers.variance_scaling(scale, "fan_in", "truncated_normal")
  return nn.Dense(
    config.width,
    use_bias=False,
    kernel_init=init,
    dtype=config.dtype,
    name="patch_stats",
  )(stats)


def _std(pixels):
  var = pixels.var(-2)
  # A constant patch has variance 0, where the root's gradient is infinite.
  return jnp.where(var > 0, jnp.sqrt(jnp.where(var > 0, var, 1)), 0)


# Functions of (…, pixels, groups), over pixels.
_STATISTICS = {"mean": lambda pixels: pixels.mean(-2), "std": _std}
