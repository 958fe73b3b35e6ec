"""Accuracy on images of changed brightness, contrast, gamma or clarity."""

import dataclasses
import itertools
from collections.abc import Sequence

import numpy as np

from dpn import errors
from dpn.evaluators import base, classification
from dpn.input_pipeline import batches, pp
from dpn.input_pipeline.pp import ops_corrupt


@dataclasses.dataclass(kw_only=True)
class Evaluator(classification.Evaluator):
  """Reports top-1 accuracy under corruptions, made on the fly.

  In `pp_fn`, the op `corrupt` without arguments says where images are
  corrupted: after resizing and cropping, before `value_range`. See
  `dpn.input_pipeline.pp.ops_corrupt` for the definitions. An example is always
  corrupted in the same way, and anew each time unless `cache_final` keeps all:
  each kind and severity takes as much memory as the data set.

  Metrics, all in [0, 1]: `<kind>_<severity>_prec@1`; `<kind>_prec@1`, the mean
  over the severities; `prec@1`, the mean over all.
  """

  kinds: Sequence[str] = tuple(ops_corrupt.CORRUPTIONS)
  severities: Sequence[int] = ops_corrupt.SEVERITIES

  def __post_init__(self):
    base.check_given(kinds=self.kinds, severities=self.severities)
    for kind in self.kinds:
      errors.check_known("kind", kind, ops_corrupt.CORRUPTIONS)
    steps = pp.make(self.pp_fn).steps
    if [step.given for step in steps if step.name == "corrupt"] != [{}]:
      raise ValueError(
        f"pp_fn={self.pp_fn!r} must have the op corrupt once, without "
        "arguments, such as 'decode|resize(32)|corrupt|value_range(-1, 1)|…'."
      )
    super().__post_init__()
    pairs = itertools.product(self.kinds, self.severities)
    self._corrupted = {pair: self._under(*pair) for pair in pairs}

  def run(self, variables):
    data = self._corrupted.items()
    accuracy = {pair: self._accuracy(variables, x) for pair, x in data}
    mean = lambda *kinds: np.mean(
      [v for k, v in accuracy.items() if k[0] in kinds]
    )
    return {
      **{f"{kind}_{s}_prec@1": value for (kind, s), value in accuracy.items()},
      **{f"{kind}_prec@1": mean(kind) for kind in self.kinds},
      "prec@1": mean(*self.kinds),
    }

  def _accuracy(self, variables, data):
    found = self.means(variables, data)
    if not np.isfinite(found["loss"]):  # whose accuracy would be class 0's
      raise ValueError(f"The loss is {found['loss']}: training has diverged.")
    return found["prec@1"]

  def _under(self, kind, severity):
    """Returns the data under a corruption; the source is opened only once."""
    spec = pp.replace(self.pp_fn, "corrupt", f"corrupt('{kind}', {severity})")
    source = self._data.examples.source
    part = batches.MixturePart(source, pp.make(spec))
    examples = batches.Examples([part], seed=0)
    return dataclasses.replace(self._data, examples=examples)
