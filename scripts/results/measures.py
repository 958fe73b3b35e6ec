"""Measures what the paper claims in prose: spikes, gradients, scales.

The definitions are ours; arXiv 2302.01327 says "unstable", "disproportionately
large" and "center and corners" without defining them.
"""

import math
import re
from collections.abc import Sequence

import numpy as np
import pandas as pd

from dpn.scripts.results import runs
from dpn.weights import files

Runs = Sequence[runs.Run]

ROWS_BEFORE = 20  # that a spike must stand out from
DEVIATIONS = 6  # standard deviations of their noise by which it must
_SCALE = "stem/ln0/scale"
_LEAST = 0.01  # the least noise assumed, as a share of the loss


def by_step(repetitions: Runs, metric: str) -> pd.DataFrame:
  """Returns what repeated runs logged, (runs, steps), at steps that all share.

  Raises ValueError if there is no such step.
  """
  # Not by path: runs of two archives may have the same.
  series = [run.series(metric) for run in repetitions]
  values = pd.concat(series, axis=1).T.sort_index(axis=1).dropna(axis=1)
  if values.empty:
    paths = ", ".join(run.path for run in repetitions)
    raise ValueError(f"{paths} logged {metric!r} at no step that all have.")
  return values


def norms_by_depth(repetitions: Runs, family: str) -> pd.DataFrame:
  """Returns the last norms logged (runs, layers), the patch embedding's first.

  `family` is where the metrics' names begin, "grad_norm_mean" for example.
  """
  logged = repetitions[0].logged
  blocks = sorted(k for k in logged if re.fullmatch(rf"{family}/block\d+", k))
  metrics = [f"{family}/embedding", *blocks]
  last = [
    [run.series(metric).iloc[-1] for metric in metrics] for run in repetitions
  ]
  return pd.DataFrame(last, [run.path for run in repetitions])


def spikes(loss: pd.Series) -> int:
  """Returns how many of the losses that were logged are spikes.

  A spike exceeds the median of the 20 rows before it (at least 5) by more than
  six standard deviations of their noise. These are estimated as for normal
  noise: 1.4826 / √2 times the median absolute difference between neighbours,
  which the trend hardly moves, but no less than 1% of the loss.
  """
  before = lambda x: x.rolling(ROWS_BEFORE, min_periods=5).median().shift(1)
  median, difference = before(loss), before(loss.diff().abs())
  deviation = np.maximum(1.4826 / 2**0.5 * difference, _LEAST * median.abs())
  return int((loss > median + DEVIATIONS * deviation).sum())


def gradient_peak(run: runs.Run) -> float:
  """Returns the largest norm of the gradient that was logged, in medians."""
  norms = run.series("l2_grads")
  return float(norms.max() / norms.median())


def stands_out(base: Runs, dpn: Runs) -> tuple[bool, str]:
  """Judges whether the embedding's gradient is at least twice the blocks'.

  That is, twice their median at the end of training, for norms before clipping
  averaged over the last steps (see `dpn.trainers.update.make`) and over runs;
  and above every block in most rows, with equal weight for each run.
  """
  del dpn
  norms = norms_by_depth(base, "grad_norm_mean").mean()
  over, shares = float(norms[0] / norms[1:].median()), []
  for run in base:
    rows = run.logged.filter(regex=r"^grad_norm/(embedding|block\d+)$").dropna()
    embedding = rows.pop("grad_norm/embedding")
    shares.append(float((embedding > rows.max(axis=1)).mean()))
  above = float(np.mean(shares))
  text = f"{over:.3g} × the median block; above every block in {above:.0%} of"
  return over >= 2 and above > 0.5, f"{text} the rows"


def scaled_down(base: Runs, dpn: Runs) -> tuple[bool, str]:
  """Judges whether DPN's embedding ends training with a smaller gradient."""
  means = [
    np.mean([run.series("grad_norm_mean/embedding").iloc[-1] for run in of])
    for of in (dpn, base)
  ]
  ratio = means[0] / means[1]
  return ratio < 1, f"{ratio:.3g} × that of the plain ViT"


def throughout(base: Runs, dpn: Runs) -> tuple[bool, str]:
  """Judges whether DPN's embedding gradient is smaller in 95% of the rows.

  Rows are those that all runs logged; their means over runs are compared.
  """
  new, old = (
    pd.concat([run.series("grad_norm/embedding") for run in of], axis=1)
    for of in (dpn, base)
  )
  ratio = new.mean(axis=1, skipna=False) / old.mean(axis=1, skipna=False)
  lower = float((ratio.dropna() < 1).mean())
  return lower >= 0.95, f"lower in {lower:.0%} of the rows"


def read_scale(path: str) -> np.ndarray:
  """Returns the scale of ln0 in a parameter file, (rows, cols, channels).

  Raises:
    FileNotFoundError, ValueError: there is no such file, or no such scale.
  """
  params = files.read(files.locate(path))[0]
  if _SCALE not in params:
    raise ValueError(
      f"{path} has no {_SCALE!r}: expected the parameters of a model with a "
      "LayerNorm before the patch embedding (stem_ln=dpn or pre)."
    )
  scale = params[_SCALE].astype("float32")
  kernel = params.get("embedding/kernel")
  side = math.isqrt(scale.size // 3)
  shape = (side, side, 3) if kernel is None else kernel.shape[:3]
  if scale.size != math.prod(shape):
    raise ValueError(
      f"{path}: {_SCALE!r} has {scale.size} numbers, expected those of patches "
      f"of shape {shape} (rows, cols, channels)."
    )
  return scale.reshape(shape)


def regions(scale: np.ndarray) -> pd.DataFrame:
  """Returns the mean magnitude of a patch's scale by region and colour.

  The patch is divided into 4 × 4 squares: its four corners, the four in the
  centre, and the eight others along its edges.

  Args:
    scale: (rows, cols, channels).

  Returns:
    (channels, regions); columns "centre", "corners", "edges".
  """
  outer = [
    np.isin(np.arange(size) * 4 // size, (0, 3)) for size in scale.shape[:2]
  ]
  count = np.add.outer(*(side.astype(int) for side in outer))  # sides it is on
  return pd.DataFrame(
    {
      name: np.abs(scale)[count == sides].mean(axis=0)
      for name, sides in (("centre", 0), ("corners", 2), ("edges", 1))
    }
  )
