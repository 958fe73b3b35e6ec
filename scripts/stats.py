"""Says how far a mean over a few runs can be trusted."""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import scipy.stats


@dataclasses.dataclass(frozen=True)
class Mean:
  """A mean with its 95% confidence interval.

  Attributes:
    value: the mean.
    ci: half the interval's length; NaN for fewer than two numbers.
    n: how many numbers there were.
  """

  value: float
  ci: float
  n: int

  def text(self, scale: float = 1.0, digits: int = 2, sign: str = "") -> str:
    """Returns "12.34 ± 0.56"; without an interval "12.34", without both "–".

    Args:
      scale: factor of both numbers, 100 for percent.
      digits: after the decimal point.
      sign: "+" shows the sign of a positive mean.
    """
    if not self.n:
      return "–"
    text = f"{scale * self.value:{sign}.{digits}f}".replace("-", "−")
    if math.isnan(self.ci):
      return text
    return f"{text} ± {scale * self.ci:.{digits}f}"


def mean(values: Sequence[float]) -> Mean:
  """Returns the mean and its 95% interval, from Student's t distribution.

  The interval is t(0.975, n - 1) · s / √n around the mean, s² being the
  unbiased variance: right for independent, normally distributed values.
  """
  values, n = np.asarray(values, np.float64), len(values)
  if n == 0:
    return Mean(math.nan, math.nan, 0)
  if n == 1:
    return Mean(float(values[0]), math.nan, 1)
  t = scipy.stats.t.ppf(0.975, n - 1)
  ci = t * values.std(ddof=1) / math.sqrt(n)
  return Mean(float(values.mean()), float(ci), n)
