"""Elementwise functions that take the place of a normalizer.

None takes statistics: y = h(alpha x + shift) * scale + bias, with one learned
`alpha` and one learned `shift` for all channels. h is bounded and odd, and all
but the clipped ones and `exproot` rise smoothly through 0.
"""

from collections.abc import Callable, Mapping

import flax.linen as nn
import jax
import jax.numpy as jnp

from dpn.models.norms.base import Normalizer, along_width

HALF_PI = jnp.pi / 2


def magnitude(x):
  """Returns |x|, but 1 at 0, for powers whose slope there is not finite.

  Times sign(x) such a power is 0 at 0, as it should be, with a slope of 0.
  """
  return jnp.where(x == 0, 1, jnp.abs(x))


def saturlog(x):
  """sign(x) l / (l + 1) with l = log(|x| + 1)."""
  log = jnp.log1p(jnp.abs(x))
  return jnp.sign(x) * log / (log + 1)


def clip(x):
  return jnp.clip(x, -1, 1)


# In the order and with the names of the authors' code, arXiv 2512.10938.
FUNCTIONS: Mapping[str, Callable] = {
  "derf": jax.lax.erf,
  "arctan": lambda x: jnp.arctan(x) / HALF_PI,
  "cubsign": lambda x: x**3 / (jnp.abs(x) ** 3 + 1),
  "exproot": lambda x: -jnp.sign(x) * jnp.expm1(-jnp.sqrt(magnitude(x))),
  "expsign": lambda x: -jnp.sign(x) * jnp.expm1(-jnp.abs(x)),
  "isru": lambda x: x / jnp.sqrt(x**2 + 1),
  "linear_clip": clip,
  "logquad_clip": lambda x: clip(jnp.sign(x) * jnp.log1p(x**2)),
  "logsign_clip": lambda x: clip(jnp.sign(x) * jnp.log1p(jnp.abs(x))),
  "power23_clip": lambda x: clip(jnp.sign(x) * magnitude(x) ** (2 / 3)),
  "relsign": lambda x: x / (jnp.sqrt(x**2 + 1) + 1),
  "saturlog": saturlog,
  "satursin": lambda x: jnp.sin(jnp.clip(x, -HALF_PI, HALF_PI)),
  "smoothsign": lambda x: x / (1 + jnp.abs(x)),
  "smoothsign_clip": lambda x: clip(x / (1 + jnp.abs(x))),
}


class Pointwise(Normalizer):
  """h(alpha x + shift) * scale + bias (arXiv 2512.10938).

  Parameters: `alpha` (1,), `shift` (1,), `scale` (width,), `bias` (width,).
  The authors also replace the norm after the last block: `final_norm="norm"`.
  With average pooling, theirs comes after the pooling, ours before it.

  Attributes:
    alpha: initial value of `alpha`.
    shift: initial value of `shift`; None leaves it out.
  """

  alpha: float = 0.5
  shift: float | None = 0.0

  @nn.compact
  def __call__(self, x, train=False):
    y = self.scalar("alpha", x) * self.upcast(x)
    if self.shift is not None:
      y = y + self.scalar("shift", x)
    return self.scale_and_bias(self.function(y))

  def scalar(self, name, x):
    init = nn.initializers.constant(getattr(self, name))
    return along_width(self.param(name, init, (1,)), x)

  def function(self, x):
    """Returns h(x)."""
    raise NotImplementedError


class DyT(Pointwise):
  """tanh(alpha x) * scale + bias (arXiv 2503.10622).

  There is no shift unless its initial value is given, as in arXiv 2512.10938.
  """

  shift: float | None = None

  def function(self, x):
    return jnp.tanh(x)


def _make(name, h):
  doc = f"Dynamic {name}, see `pointwise.FUNCTIONS` (arXiv 2512.10938)."
  if name == "derf":
    doc = "erf(alpha x + shift) * scale + bias (arXiv 2512.10938)."
  fields = {"__doc__": doc, "__module__": __name__}
  return type(name, (Pointwise,), fields | {"function": lambda self, x: h(x)})


# name → subclass of `Pointwise`.
NORMS = {"dyt": DyT} | {name: _make(name, h) for name, h in FUNCTIONS.items()}
