"""What JSON must hold, and what is said where it does not."""

import json
from collections.abc import Mapping
from typing import Any, Literal, Required, TypedDict

import pytest

from dpn import schema


class _Size(TypedDict, total=False):
  width: Required[int]
  patch: tuple[int, str]


class _File(TypedDict, total=False):
  name: str | None
  sizes: list[_Size]
  metrics: dict[str, float]
  kw: Mapping[str, Any] | None
  mode: Literal["a", "b"]


GOOD = {
  "name": None,
  "sizes": [{"width": 3, "patch": [1, "x"]}, {"width": 1, "other": "free"}],
  "metrics": {"loss": 1, "lr": 0.5},
  "kw": {"x": [None]},
  "mode": "a",
  "other": [],
}


def _read(tmp_path, value, hint=_File):
  path = tmp_path / "f.json"
  path.write_text(value if isinstance(value, str) else json.dumps(value))
  return schema.read_json(str(path), hint)


def test_what_fits_is_returned(tmp_path):
  assert _read(tmp_path, GOOD) == GOOD
  assert _read(tmp_path, {}) == {}
  assert _read(tmp_path, [1, 2.5], list[float]) == [1, 2.5]
  assert _read(tmp_path, "null", Literal["a", "b"] | None) is None
  with pytest.raises(ValueError, match=r"of type Literal\['a', 'b'\] or None"):
    _read(tmp_path, '"c"', Literal["a", "b"] | None)


@pytest.mark.parametrize(
  ("value", "message"),
  [
    ("", "f.json is damaged, expected JSON: Expecting value"),
    ("\x00" * 9, "is damaged, expected JSON"),
    ("[" * 40 + "]" * 40, "nested more than 32 deep"),
    ("[" * 100_000, "is damaged, expected JSON"),
    ([], r"f.json: it must be of type dict, got \[\]\.$"),
    (GOOD | {"name": 1}, "name must be of type str or NoneType, got 1"),
    (GOOD | {"kw": [1]}, "kw must be of type dict or NoneType"),
    (GOOD | {"mode": []}, r"Unknown mode \[\]. Known: a, b"),
    (GOOD | {"sizes": {}}, r"sizes must be of type list\[_Size\], got {}"),
    (GOOD | {"sizes": [{}]}, "f.json: sizes.0.width is missing"),
    (GOOD | {"sizes": [{"width": True}]}, "sizes.0.width must be of type int"),
    (GOOD | {"sizes": [{"width": 1.0}]}, "sizes.0.width must be of type int"),
    (
      GOOD | {"sizes": [{"width": 1, "patch": [1]}]},
      r"sizes.0.patch must be of type tuple.*got \[1\]",
    ),
    (
      GOOD | {"sizes": [{"width": 1, "patch": [1, 2]}]},
      "sizes.0.patch.1 must be of type str, got 2",
    ),
    (
      GOOD | {"metrics": {"loss": float("nan")}},
      "metrics.loss must be of type float, got nan",
    ),
    (GOOD | {"name": ["x" * 999]}, r"got \['x{78}…\.$"),
  ],
)
def test_what_does_not_fit_is_named(tmp_path, value, message):
  with pytest.raises(ValueError, match=message):
    _read(tmp_path, value)
