"""Says how far a mean over a few runs can be trusted."""

import dataclasses
import math
from collections.abc import Hashable, Mapping, Sequence

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


def difference(
  new: Mapping[Hashable, float], old: Mapping[Hashable, float]
) -> tuple[Mean, str]:
  """Returns the mean of new − old with its interval, and how it was found.

  "paired" where both hold the same keys: the interval is that of the mean of
  the differences key by key. Otherwise "Welch": the interval of the difference
  of two means of unequal variance, with the degrees of freedom of Welch and
  Satterthwaite; `n` is then the smaller number of values.

  Args:
    new: values by seed, one at least.
    old: the same, of the other arm.
  """
  if new.keys() == old.keys():
    return mean([new[key] - old[key] for key in new]), "paired"
  a, b = (np.asarray(list(v.values()), np.float64) for v in (new, old))
  value, n = float(a.mean() - b.mean()), min(len(a), len(b))
  if n < 2:
    return Mean(value, math.nan, n), "unpaired"
  parts = a.var(ddof=1) / len(a), b.var(ddof=1) / len(b)
  if not sum(parts):
    return Mean(value, 0.0, n), "Welch"
  freedom = sum(parts) ** 2 / (
    parts[0] ** 2 / (len(a) - 1) + parts[1] ** 2 / (len(b) - 1)
  )
  t = scipy.stats.t.ppf(0.975, freedom)
  return Mean(value, float(t * math.sqrt(sum(parts))), n), "Welch"
