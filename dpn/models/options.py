"""Options of a model: merged with a variant's, checked, described."""

import dataclasses
import functools
import typing
from collections.abc import Collection, Mapping
from typing import Any, ClassVar

import flax

from dpn import errors, registry, schema

NONE: Mapping[str, Any] = flax.core.FrozenDict()


@dataclasses.dataclass(frozen=True)
class Options:
  """Base of the frozen dataclasses whose fields are a model's options.

  Attributes:
    CHOICES: tables for options with options of their own, `<choice>_kw`.
    VALUES: the values of options without them; where these are a table, import
      paths are allowed, too.
    TRAINING_ONLY: options that do not change the function which given
      parameters compute.
    SIZE_OPTION: the option that chooses `base` of `make`, named to users only.
  """

  CHOICES: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
  VALUES: ClassVar[Mapping[str, Any]] = {}
  TRAINING_ONLY: ClassVar[Collection[str]] = ()
  SIZE_OPTION: ClassVar[str] = "variant"

  def bind(self, choice: str) -> functools.partial:
    """Returns the chosen function or class, with its options bound."""
    name, kw = getattr(self, choice), getattr(self, f"{choice}_kw")
    return registry.bind(choice, name, self.CHOICES[choice], kw)

  def lookup(self, key: str) -> Any:
    """Returns what the value of an option stands for in its table."""
    return registry.lookup(key, getattr(self, key), self.VALUES[key])

  @classmethod
  def hints(cls) -> dict[str, Any]:
    """Returns the types of all options, as a config may give them."""
    hints = typing.get_type_hints(cls)
    names = [field.name for field in dataclasses.fields(cls)]
    may_be_none = lambda name: name == "mlp_dim" or name.endswith("_kw")
    return {n: hints[n] | None if may_be_none(n) else hints[n] for n in names}

  @classmethod
  def make(cls, base: Mapping[str, Any], kw: Mapping[str, Any]):
    """Returns the options `kw`, with the rest from `base`, after all checks.

    The options of a choice (`norm_kw`) replace those in `base` one by one; if
    the choice itself (`norm`) differs, those in `base` do not apply.
    """
    hints = cls.hints()
    for key, value in kw.items():
      errors.check_known("model option", key, [cls.SIZE_OPTION, *hints])
      schema.check("model", key, value, hints[key])
    merged = {**base, **kw}
    for choice in cls.CHOICES:
      key = f"{choice}_kw"
      before = base.get(choice, getattr(cls, choice))
      kept = base.get(key, {}) if kw.get(choice, before) == before else {}
      merged[key] = flax.core.freeze({**kept, **dict(kw.get(key) or {})})
    # JSON has no tuples, and Linen wants options that can be hashed.
    merged = {k: tuple(v) if type(v) is list else v for k, v in merged.items()}
    if merged.get("mlp_dim", 1) is None:  # as in big_vision
      merged["mlp_dim"] = 4 * merged.get("width", getattr(cls, "width", 0))
    options = cls(**merged)
    options.check()
    return options

  def check(self):
    """Raises ValueError on unknown values, naming the nearest."""
    for choice in self.CHOICES:
      self.bind(choice)
    for key, known in self.VALUES.items():
      if isinstance(known, Mapping):
        self.lookup(key)
      else:
        errors.check_known(key, getattr(self, key), known)

  def describe(self) -> dict[str, Any]:
    """Returns the options that determine what a model computes, JSON-able.

    All options except `TRAINING_ONLY`; the `*_kw` include their defaults.
    """
    fields = (field.name for field in dataclasses.fields(self))
    result = {
      k: getattr(self, k) for k in fields if k not in self.TRAINING_ONLY
    }
    for choice in self.CHOICES:
      bound = self.bind(choice)
      kw = registry.defaults(bound.func) | bound.keywords
      result[f"{choice}_kw"] = kw
    return {k: list(v) if type(v) is tuple else v for k, v in result.items()}
