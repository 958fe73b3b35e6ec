"""Names, import paths and options of what configs choose."""

from typing import Literal

import pytest

from dpn import registry


def _choice(
  mode: Literal["a", "b"] = "a",
  count: int = 1,
  rate: float | None = None,
  flag: bool = False,
  *,
  name: str = "",
):
  return mode, count, rate, flag


def test_a_name_or_an_import_path():
  assert registry.lookup("norm", "x", {"x": 1}) == 1
  assert registry.lookup("norm", "math:pi", {}) == pytest.approx(3.14159, 1e-5)


@pytest.mark.parametrize(
  ("name", "message"),
  [
    ("dtm", "Unknown norm 'dtm'. Did you mean 'dtn'.*package.module:attribute"),
    ("nopkg.mod:x", "norm='nopkg.mod:x': there is no module 'nopkg'"),
    ("math:pii", "norm='math:pii': Unknown attribute 'pii'. Did you mean 'pi'"),
    (3, "norm must be a name, got 3"),
  ],
)
def test_what_is_not_there_is_named(name, message):
  with pytest.raises(ValueError, match=message):
    registry.lookup("norm", name, {"dtn": 1})


def test_options_are_bound():
  bound = registry.bind("norm", "c", {"c": _choice}, {"mode": "b", "rate": 1})
  assert bound() == ("b", 1, 1, False)
  assert registry.bind("norm", "c", {"c": _choice})() == ("a", 1, None, False)


@pytest.mark.parametrize(
  ("kw", "message"),
  [
    ({"moda": "a"}, "norm_kw of norm='c': Unknown option 'moda'. Did.*'mode'"),
    ({"mode": "c"}, "Unknown mode 'c'. Known: a, b"),
    ({"count": "2"}, "count must be of type int, got '2'"),
    ({"count": True}, "count must be of type int, got True"),
    ({"rate": float("nan")}, "rate must be of type float or NoneType, got nan"),
    ({"flag": 1}, "flag must be of type bool, got 1"),
    ({"name": "x"}, "Unknown option 'name'"),
  ],
)
def test_wrong_options_are_refused(kw, message):
  with pytest.raises(ValueError, match=message):
    registry.bind("norm", "c", {"c": _choice}, kw)
