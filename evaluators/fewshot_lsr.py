"""Few-shot linear probe: ridge regression onto one-hot labels.

Differs from big_vision: float64, as the squared constant feature would use up
half of float32's digits. On synthetic features this changes 0.2 to 0.4 % of the
predictions and less than 0.1 % of the accuracy.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Mapping, Sequence

import jax
import numpy as np
import scipy.linalg

from dpn import errors, trees
from dpn.evaluators import base
from dpn.input_pipeline import sources

# So large that the penalty on the weights of this feature, the bias, does not
# matter.
BIAS = 100.0


def choose_shots(
  labels: np.ndarray, num_classes: int, shots: int, seed: int
) -> np.ndarray:
  """Returns the indices of `shots` random examples of each class, by class.

  The draw is big_vision's, so a seed names the same examples in both; fewer
  shots are a subset of more shots. A class with fewer examples gives all it
  has, which is logged. `labels` are integers, (examples,).
  """
  order = np.argsort(labels, kind="stable")
  if len(order) and labels[order[0]] < 0:
    raise ValueError(
      f"Got a label {labels[order[0]]}, expected classes from 0."
    )
  bounds = np.searchsorted(labels[order], np.arange(num_classes + 1))
  classes = np.split(order, bounds)[1:-1]
  if few := [c for c, found in enumerate(classes) if len(found) < shots]:
    named = errors.some_of([*map(str, few)], 9)
    text = f"{len(few)} classes have fewer than {shots} examples: {named}."
    trees.warn_once(text)  # once for all seeds
  rng = np.random.default_rng(seed)
  return np.concatenate([rng.permutation(c)[:shots] for c in classes])


def fit(
  x: np.ndarray, y: np.ndarray, num_classes: int, l2_reg: float
) -> Callable[[np.ndarray], np.ndarray]:
  """Fits the probe and returns it: (examples, width) → (examples,) classes.

  Each feature is standardized and a constant one is appended; targets are 1
  for the class and -1 for the others. The weights minimize the squared error
  plus l2_reg times the squared weights, in closed form. Features `x` are
  (examples, width), classes `y` (examples,) and in [0, num_classes).
  """
  x, y = _checked(x, y, num_classes)
  if not l2_reg > 0:
    raise ValueError(f"Got l2_reg={l2_reg}, expected a positive number.")
  mean, std = x.mean(axis=0), x.std(axis=0) + 1e-5
  whitened = (x - mean) / std
  features = np.pad(whitened, ((0, 0), (0, 1)), constant_values=BIAS)
  targets = np.full((len(y), num_classes), -1.0)
  targets[np.arange(len(y)), y] = 1.0
  ridge = _ridge(features, targets, l2_reg)  # (width + 1, classes)
  # Whiten the weights once, instead of all features that are to come.
  weights = ridge[:-1] / std[:, None]
  bias = BIAS * ridge[-1] - mean @ weights
  return lambda x: np.argmax(x @ weights + bias, axis=1)


def _ridge(x, y, l2_reg):
  """Returns the ridge weights, from the smaller of the two Gram matrices."""
  n, dim = x.shape
  solve = functools.partial(scipy.linalg.solve, assume_a="pos")
  if n >= dim:
    return solve(x.T @ x + l2_reg * np.eye(dim), x.T @ y)
  return x.T @ solve(x @ x.T + l2_reg * np.eye(n), y)


def fit_and_score(
  x_train: np.ndarray,
  y_train: np.ndarray,
  x_test: np.ndarray,
  y_test: np.ndarray,
  num_classes: int,
  l2_reg: float,
) -> float:
  """Returns the accuracy, in [0, 1], of the probe that `fit` makes."""
  x_test, y_test = _checked(x_test, y_test, num_classes)
  predict = fit(x_train, y_train, num_classes, l2_reg)
  return float(np.mean(predict(x_test) == y_test))


def _checked(x, y, num_classes):
  """Returns float64 features and integer classes that fit together."""
  x, y = np.asarray(x, np.float64), np.asarray(y)
  if x.ndim != 2 or y.shape != x.shape[:1] or not len(y):
    raise ValueError(
      f"Got features {x.shape} and labels {y.shape}, expected (examples,"
      " width) and (examples,), with one example at least."
    )
  if not np.isfinite(x).all():
    raise ValueError("A feature is not finite: training may have diverged.")
  if y.dtype.kind not in "iu" or y.min() < 0 or y.max() >= num_classes:
    raise ValueError(
      f"Got {y.dtype} labels from {y.min()} to {y.max()}, expected integers in "
      f"[0, {num_classes}): check num_classes."
    )
  return x, y


@dataclasses.dataclass(kw_only=True)
class Evaluator(base.Evaluator):
  """Probes a representation with a few images per class.

  Reports `<data set>_<shots>shot`, the mean accuracy over the seeds, and
  `<data set>_<shots>shot-seed-<seed>`, each in [0, 1].
  """

  datasets: Mapping[str, tuple[str, str, str]]  # name → (data set, train, test)
  pp_train: str  # must leave `image` and an integer label
  pp_eval: str  # the same for the test split
  shots: Sequence[int] = (1, 5, 10, 25)  # examples per class
  l2_reg: float = 2.0**10
  num_seeds: int = 3  # draws of the examples, from seed 0 on
  representation_layer: str = "pre_logits"  # names joined by "/"
  label_key: str = "label"
  data_dir: str | None = None  # where TFDS data sets are
  subset_seed: int | None = None  # of slices, see `sources.make`

  def __post_init__(self):
    base.check_given(shots=self.shots, datasets=self.datasets)
    if min((self.num_seeds, *self.shots)) < 1:
      raise ValueError(
        f"Got num_seeds={self.num_seeds} and shots={tuple(self.shots)}, "
        "expected 1 or more."
      )
    super().__post_init__()
    # Every process solves the probes, so each needs all features and labels.
    self._features = self.jit(
      lambda variables, batch: _intermediate(
        self.predict_fn(variables, batch)[-1], self.representation_layer
      )
    )
    self._datasets = {}
    for key, (name, train, test) in self.datasets.items():
      data = sources.named(name, self.data_dir)
      data["subset_seed"] = self.subset_seed
      self._datasets[key] = (
        self.open(data | {"split": train}, self.pp_train),
        self.open(data | {"split": test}, self.pp_eval),
      )

  def check(self, variables, trace=jax.eval_shape):
    for data in itertools.chain(*self._datasets.values()):
      key = self.label_key
      self.check_batch(self._features, variables, data, key, trace=trace)

  def run(self, variables):
    metrics = {}
    for name, (train, test) in self._datasets.items():
      x, y = self._represent(variables, train)
      x_test, y_test = self._represent(variables, test)
      known = train.examples.source.num_classes(self.label_key) or 0
      num_classes = max(known, 1 + int(max(y.max(), y_test.max())))
      for shots in self.shots:
        accuracies = []
        for seed in range(self.num_seeds):
          few = choose_shots(y, num_classes, shots, seed)
          args = (x[few], y[few], x_test, y_test, num_classes, self.l2_reg)
          accuracies.append(fit_and_score(*args))
          metrics[f"{name}_{shots}shot-seed-{seed}"] = accuracies[-1]
        metrics[f"{name}_{shots}shot"] = float(np.mean(accuracies))
    return metrics

  def _represent(self, variables, data) -> list[np.ndarray]:
    """Returns features (examples, width) and classes (examples,)."""
    return self.collect(self._features, variables, data, self.label_key)


def _intermediate(out, layer):
  flat, start = trees.flatten(dict(out)), ""
  below = lambda: {
    name.removeprefix(start).split("/")[0]
    for name in flat
    if name.startswith(start)
  }
  for key in layer.split("/"):
    if key not in below():
      raise ValueError(errors.unknown("representation_layer", layer, below()))
    start += f"{key}/"
  if layer not in flat or flat[layer].ndim != 2:
    found = flat[layer].shape if layer in flat else sorted(below())
    raise ValueError(
      f"representation_layer={layer!r} holds {found}; expected one array "
      "(batch, width). Choose one after pooling, a group's after a slash."
    )
  return flat[layer]
