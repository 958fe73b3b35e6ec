"""The mean and standard deviation that images are normalized with."""

import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True)
class Pixels:
  """Images are (x - mean) / std, for x in [0, 1]; one number per channel."""

  mean: tuple[float, ...]
  std: tuple[float, ...]

  def __post_init__(self):
    for name in ("mean", "std"):
      values = getattr(self, name)
      values = np.repeat(values, 3 if np.size(values) == 1 else 1)
      object.__setattr__(self, name, tuple(map(float, values)))

  def of(self, channels: int) -> tuple[list[float], list[float]]:
    """Returns mean and std for that many channels.

    Raises:
      ValueError: the numbers differ, and there are not that many.
    """
    both = [self.mean, self.std]
    if any(len(x) != channels and len(set(x)) > 1 for x in both):
      raise ValueError(
        f"The pixels' {self} are for {len(self.mean)} channels, but the "
        f"images have {channels}."
      )
    mean, std = (list((x * channels)[:channels]) for x in both)
    return mean, std

  def close_to(self, other: "Pixels") -> bool:
    here, there = ((*x.mean, *x.std) for x in (self, other))
    return len(here) == len(there) and np.allclose(here, there, atol=1e-3)

  def __str__(self):
    low = [(0 - m) / s for m, s in zip(self.mean, self.std, strict=True)]
    high = [(1 - m) / s for m, s in zip(self.mean, self.std, strict=True)]
    if len(set(low)) == len(set(high)) == 1:
      return f"value_range({low[0]:g}, {high[0]:g})"
    levels = lambda values: tuple(round(255 * v, 3) for v in values)
    return f"vgg_value_range({levels(self.mean)}, {levels(self.std)})"
