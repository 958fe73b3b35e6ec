"""Evaluators by name, and when they run."""

import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import jax

from dpn import errors, schedules
from dpn.tasks import base

TYPES = ("classification", "fewshot_lsr", "mean")


class Evaluator(Protocol):
  """Measures variables on data of its own.

  Constructed with (predict_fn, *, mesh, batch_size, **arguments), where the
  arguments are the keys of `config.evals.<name>`.
  """

  def check(self, variables: base.Variables):
    """Raises ValueError if it cannot run on variables of these shapes."""

  def run(self, variables: base.Variables) -> Mapping[str, float]:
    """Returns metrics by name; the same on every process."""


class EvaluatorError(RuntimeError):
  """An evaluator failed; the message names it."""


class Scheduled(NamedTuple):
  """An evaluator and the number of steps from one run of it to the next."""

  name: str
  evaluator: Evaluator
  every_steps: int

  def check(self, variables: base.Variables):
    """Raises ValueError if it cannot run on variables of these shapes."""
    try:
      self.evaluator.check(variables)
    except ValueError as e:
      raise ValueError(f"config.evals.{self.name}: {e}") from e

  def run(self, variables: base.Variables) -> dict[str, float]:
    """Returns `{"<evaluator>/<metric>": value}`.

    Raises:
      EvaluatorError: whatever went wrong.
    """
    try:
      metrics = self.evaluator.run(variables)
    except Exception as e:
      raise EvaluatorError(
        f"Evaluator {self.name!r} failed: {type(e).__name__}: {e}"
      ) from e
    return {f"{self.name}/{key}": float(v) for key, v in metrics.items()}


def from_config(
  config: Mapping[str, Any],
  predict_fns: Mapping[str, Callable],
  mesh: jax.sharding.Mesh,
  sizes: Mapping[str, int],
) -> list[Scheduled]:
  """Returns the evaluators in `config.evals`.

  Each has `type`, optionally `pred` (one of `predict_fns`), a duration `log`
  (`config.log_eval_steps` if it has none), and the arguments of its type.

  Args:
    config: the whole config.
    predict_fns: of the task.
    mesh: the devices.
    sizes: total_steps, batch_size and data_size, to convert durations.

  Raises:
    ValueError: on an unknown type, prediction or argument, or no duration.
  """
  default = schedules.steps("log_eval", config, **sizes, default=None)
  scheduled = []
  for name, section in (config.get("evals") or {}).items():
    section = dict(section)
    path = f"config.evals.{name}"
    try:
      every = schedules.steps("log", section, **sizes, default=default)
      if not every:
        raise ValueError("how often it runs is missing, e.g. log_steps=100.")
      for unit in schedules.UNITS:
        section.pop(f"log_{unit}", None)
      evaluator = _make(section, predict_fns, mesh, sizes["batch_size"])
    except (ValueError, OSError) as e:
      kind = OSError if isinstance(e, OSError) else ValueError
      raise kind(f"{path}: {e}") from e
    scheduled.append(Scheduled(name, evaluator, every))
  return scheduled


def _make(section, predict_fns, mesh, batch_size):
  kind = section.pop("type", None)
  if kind not in TYPES:
    raise ValueError(errors.unknown("type", kind, TYPES))
  cls = importlib.import_module(f"evaluators.{kind}").Evaluator
  pred = section.pop("pred", cls.PRED)
  if pred not in predict_fns:
    raise ValueError(errors.unknown("pred", pred, predict_fns))
  section.setdefault("batch_size", batch_size)
  known = dict(inspect.signature(cls).parameters)
  del known["predict_fn"], known["mesh"]
  for key in section:
    if key not in known:
      raise ValueError(errors.unknown("key", key, known))
  for key, parameter in known.items():
    if parameter.default is parameter.empty and key not in section:
      raise ValueError(f"{key} is missing; {kind} needs it.")
  return cls(predict_fns[pred], mesh=mesh, **section)
