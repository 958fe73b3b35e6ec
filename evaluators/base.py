"""Evaluators by name or import path, and when they run."""

import contextlib
import dataclasses
import functools
import inspect
import math
import pkgutil
import typing
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, ClassVar, NamedTuple

import flax.errors
import jax
import numpy as np
from absl import logging

from dpn import (
  errors,
  evaluators,
  processes,
  registry,
  schedules,
  schema,
  sharding,
)
from dpn.input_pipeline import device, loader, pipeline, sources
from dpn.input_pipeline.pp import ops_text
from dpn.tasks import base

TYPES = [
  module.name
  for module in pkgutil.iter_modules(evaluators.__path__)
  if not module.name.endswith(("base", "conftest", "_test"))
]
Trace = Callable[..., Any]  # (function, variables, batch of shapes) → shapes


@dataclasses.dataclass
class Evaluator:
  """Measures a model's variables on data of its own.

  A subclass is a dataclass whose fields are the keys of `config.evals.<name>`,
  where `type` names it: one of `TYPES` or an import path, see `find`.
  """

  PRED: ClassVar[str] = "predict"  # what `pred` is by default

  predict_fn: Callable[..., Any]  # (variables, batch) → what `pred` names
  _: dataclasses.KW_ONLY
  mesh: jax.sharding.Mesh
  batch_size: int  # over all devices

  def __post_init__(self):
    sharding.check_batch_size("batch_size", self.batch_size, self.mesh)

  @functools.cached_property
  def vocabularies(self) -> dict[str, ops_text.Vocabulary]:
    """Returns the vocabularies of its token ids, by key of the batch."""
    return {}  # filled by `open`

  def check(self, variables: base.Variables, trace: Trace = jax.eval_shape):
    """Raises ValueError if it cannot run on variables of these shapes.

    Passes to `trace` each function that is to be compiled, with the shapes of
    its arguments, and gets the shapes of its results.
    """

  def run(self, variables: base.Variables) -> Mapping[str, float]:
    """Returns metrics by name; the same on every process."""
    raise NotImplementedError

  def open(
    self, data: Mapping[str, Any] | sources.Source, pp_fn: str, **kw
  ) -> loader.EvaluationData:
    """Returns this process's share of a data set, see `pipeline.evaluation`."""
    kw["process_index"] = jax.process_index()
    kw["process_count"] = jax.process_count()
    opened = pipeline.evaluation(data, pp_fn, self.batch_size, **kw)
    processes.agree(opened.examples.facts)
    self.vocabularies |= opened.examples.vocabularies
    return opened

  def batches(self, data: loader.EvaluationData) -> Iterator[base.Batch]:
    """Returns global batches; `_mask` (batch,) is false for padding."""
    return device.DeviceIterator(data, sharding.batch(self.mesh))

  def collect(
    self,
    function: Callable,
    variables: base.Variables,
    data: loader.EvaluationData,
    *keys: str,
  ) -> list[np.ndarray]:
    """Returns a value for every example, in order, and the examples' `keys`.

    The function is from `jit`, (variables, batch without `keys`) → (batch, …).
    """
    found = []
    order = sharding.rows_by_process(self.mesh, self.batch_size)
    for batch in self.batches(data):
      mask = batch.pop("_mask")
      others = [batch.pop(key) for key in keys]
      mask, *others = jax.device_get(self._gather(mask, *others))
      values = np.asarray(function(variables, batch))
      kept = order[mask[order]]
      found.append([x[kept] for x in (values, *others)])
    return [np.concatenate(column) for column in zip(*found, strict=True)]

  def check_batch(
    self,
    function: Callable,
    variables: base.Variables,
    data: loader.EvaluationData,
    *keys: str,
    trace: Trace = jax.eval_shape,
  ):
    """Raises ValueError if `collect` cannot be called like this."""
    batch = {k: jax.ShapeDtypeStruct(*v) for k, v in data.spec.items()}
    for key in keys:
      errors.check_known("label_key", key, data.spec)
      shape, dtype = data.spec[key]
      if len(shape) != 1 or dtype.kind not in "iu":
        raise ValueError(
          f"{key!r} of each example is {dtype} of shape {shape[1:]}, expected "
          "one integer: leave onehot out, or name another key."
        )
      del batch[key]
    trace(function, variables, batch)

  @functools.cached_property
  def _gather(self):
    return self.jit(lambda *arrays: arrays)

  def jit(self, function: Callable) -> Callable:
    """Returns the compiled function, which gives every process all results."""
    function = sharding.keep_batch(self.mesh, self.batch_size)(function)
    return jax.jit(function, out_shardings=sharding.replicated(self.mesh))


def check_given(**lists: Collection):
  """Raises ValueError if one of several lists is empty."""
  if empty := [key for key, values in lists.items() if not len(values)]:
    raise ValueError(f"{empty[0]} is empty: expected one entry at least.")


def check_finite(**embeddings: np.ndarray):
  """Raises ValueError where a row of these arrays is not finite."""
  for what, z in embeddings.items():
    if bad := np.count_nonzero(~np.isfinite(z).all(axis=1)):
      raise ValueError(
        f"The embeddings of {bad} {what} are not finite: training diverged, the"
        " data are damaged, or token ids are beyond the model's vocabulary."
      )


class _Options(typing.TypedDict, total=False):
  prefix: str
  skip_first: bool


class Scheduled(NamedTuple):
  """An evaluator and when it runs."""

  name: str  # in `config.evals`
  evaluator: Evaluator
  every_steps: int
  prefix: str  # of its metrics' names
  first: bool = False  # whether it runs before the first step, too

  def check(self, variables: base.Variables, **kw):
    """Calls the evaluator's `check`; its errors name the section."""
    with _of_section(self.name):
      try:
        self.evaluator.check(variables, **kw)
      except KeyError as e:
        raise ValueError(f"no {e} in its batch. Is it of this task?") from e

  def check_vocabularies(self, trained: Mapping[str, ops_text.Vocabulary]):
    """Raises ValueError if its token ids are not those of training."""
    known = {v.sha256: v.model for v in trained.values()}
    for own in self.evaluator.vocabularies.values():
      if known and own.sha256 not in known:
        raise ValueError(
          f"config.evals.{self.name}: its vocabulary {own.model!r} is not "
          f"config.input's, {[*known.values()]}: ids would be other words."
        )

  def run(self, variables: base.Variables) -> dict[str, float]:
    """Returns `{"<prefix><metric>": value}`; any failure is EvaluatorError."""
    try:
      found = self.evaluator.run(variables)
      if not isinstance(found, Mapping):
        raise TypeError(f"expected a dictionary of numbers, got {found!r}.")
      row = {f"{self.prefix}{key}": float(v) for key, v in found.items()}
      if bad := [f"{k} = {v}" for k, v in row.items() if not math.isfinite(v)]:
        raise ValueError(f"expected finite numbers, got {', '.join(bad)}.")
    except Exception as e:
      raise errors.EvaluatorError(
        f"Evaluator {self.name!r} failed: {type(e).__name__}: {e}"
      ) from e
    return row


@contextlib.contextmanager
def _of_section(name: str):
  """Adds the section of config.evals to the messages of user errors."""
  try:
    yield
  except flax.errors.ScopeParamShapeError as e:
    what = "images have another size than those"
    remedy = "Crop or resize them to the same size."
    if "/txt" in str(e):  # the tower
      what = "texts have another number of tokens than those"
      remedy = "Give pp_txt the max_len that config.input.pp has."
    raise ValueError(
      f"config.evals.{name}: its {what} of config.input, for which the model "
      f"is. {remedy} ({e})"
    ) from e
  except (ValueError, OSError, TypeError, flax.errors.FlaxError) as e:
    kind = OSError if isinstance(e, OSError) else ValueError
    raise kind(f"config.evals.{name}: {e}") from e


def from_config(
  config: Mapping[str, Any],
  predict_fns: Mapping[str, Callable],
  mesh: jax.sharding.Mesh,
  sizes: Mapping[str, int],
) -> list[Scheduled]:
  """Returns the evaluators in `config.evals`.

  Each section has these keys, all but a duration with a default, and the
  fields of its type:

    type: see `Evaluator`; the section's name by default.
    pred: of the task's `predict_fns`: predict, loss, …; by default the type's.
    pred_kw: further arguments of that function.
    log_<unit>: how often it runs; `config.log_eval_<unit>` by default.
    prefix: of its metrics' names, unique to the section; "<name>/" by default.
    cache: "final_data" is another name of `cache_final=True`.
    cache_raw: big_vision's key; like any other `cache` ignored with a warning.
    skip_first: if False, it runs before the first step, too.

  `sizes` are total_steps, batch_size and data_size, to convert durations.
  """
  default = schedules.steps("log_eval", config, **sizes, default=None)
  inherited = {"batch_size": sizes["batch_size"]}
  if config.get("ignore_label") is not None:
    inherited["ignore_label"] = config["ignore_label"]
  scheduled, prefixes = [], {"": "training"}
  for name, section in (config.get("evals") or {}).items():
    with _of_section(name):
      if section is None:
        raise ValueError(
          f"it is None. Leave it out, or give the flag --config.evals.{name}="
          "None, which does."
        )
      schema.check(__name__, "", section, _Options)
      every = schedules.steps("log", section, **sizes, default=default)
      if not every:
        raise ValueError("how often it runs is missing, e.g. log_steps=100.")
      kw = dict(section)
      for unit in schedules.UNITS:
        kw.pop(f"log_{unit}", None)
      prefix = kw.pop("prefix", f"{name}/")
      if prefix in prefixes:
        raise ValueError(
          f"prefix={prefix!r} is that of {prefixes[prefix]}, too, so metrics "
          f"of the same name would get lost. Without it, it is '{name}/'."
        )
      prefixes[prefix] = f"config.evals.{name}"
      first = not kw.pop("skip_first", True)
      cls = find(kw.pop("type", name))
      evaluator = _make(cls, predict_fns, mesh, kw, inherited)
    scheduled.append(Scheduled(name, evaluator, every, prefix, first))
  return scheduled


def find(kind: str) -> type[Evaluator]:
  """Returns the class of one of `TYPES` or at an import path.

  "mypkg.confusion:PerClass" is a class in a module; "mypkg.confusion", as in
  big_vision, is its class `Evaluator`.
  """
  if not isinstance(kind, str) or (
    kind not in TYPES and "." not in kind and ":" not in kind
  ):
    raise ValueError(
      f"{errors.unknown('type', kind, TYPES)} Or the import path of a class of "
      "your own, 'mypkg.confusion:PerClass'."
    )
  path = f"dpn.evaluators.{kind}" if kind in TYPES else kind
  path = path if ":" in path else f"{path}:Evaluator"
  cls = registry.import_path("type", path)
  fields = getattr(cls, "__dataclass_fields__", {})
  if not (
    isinstance(cls, type)
    and issubclass(cls, Evaluator)
    and inspect.get_annotations(cls).keys() - {"_"} <= fields.keys()
  ):
    raise ValueError(
      f"{path} must derive from evaluators.base.Evaluator and, if it has "
      "fields, be a dataclass, with the decorator."
    )
  return cls


def _make(cls, predict_fns, mesh, kw, inherited):
  """Returns an evaluator made with the keys of a section, after checks.

  It gets what `inherited` has for its fields, unless the section sets these.
  """
  pred = kw.pop("pred", cls.PRED)
  errors.check_known("pred", pred, predict_fns)
  predict_fn = predict_fns[pred]
  if pred_kw := kw.pop("pred_kw", None):
    predict_fn = registry.bind("pred", pred, predict_fns, pred_kw)
  known = dict(inspect.signature(cls).parameters)
  del known["predict_fn"], known["mesh"]
  kw = {k: v for k, v in inherited.items() if k in known} | kw
  if kw.get("cache") == "final_data" and "cache_final" in known:
    del kw["cache"]  # big_vision's newer name
    kw["cache_final"] = True
  for key in {"cache", "cache_raw"} - known.keys():
    if value := kw.pop(key, None):
      logging.warning(
        "%s=%r of evaluator %s is accepted and ignored: %s.",
        *(key, value, cls.__module__, pipeline.IGNORED_KEYS[key]),
      )
  hints = typing.get_type_hints(cls)
  for key, value in kw.items():
    errors.check_known("key", key, known)
    schema.check(cls.__module__, key, value, hints.get(key, Any))
  for key, parameter in known.items():
    if parameter.default is parameter.empty and key not in kw:
      raise ValueError(f"{key} is missing; {cls.__module__} needs it.")
  return cls(predict_fn, mesh=mesh, **kw)
