"""Options in strings: values, types, and messages."""

from typing import Literal

import pytest

from dpn import options


def plain():
  """Takes nothing."""


def many(
  mode: Literal["fast", "slow"] = "fast",
  size: int = 1,
  rate: float | None = None,
  deep: bool = False,
  dtype: object = None,
):
  return mode, size, rate, deep, dtype


TABLE = {"plain": plain, "many": many}


def test_defaults():
  assert options.parse("thing", "many", TABLE)() == (
    "fast",
    1,
    None,
    False,
    None,
  )


def test_values_have_their_types():
  text = "many,deep=true,mode=slow,rate=1e-3,size=2"
  got = options.parse("thing", text, TABLE)()
  assert got == ("slow", 2, 1e-3, True, None)
  assert isinstance(got[1], int)


@pytest.mark.parametrize(
  ("text", "message"),
  [
    ("mny", "^Unknown thing 'mny'. Did you mean 'many'. Known: many, plain"),
    ("many,mod=slow", "^thing='many,mod=slow': .*Did you mean 'mode'"),
    ("many,mode=slo", "Unknown mode 'slo'. Did you mean 'slow'"),
    ("many,deep=yes", "Unknown deep 'yes'"),
    ("many,size=1.5", "size must be of type int, got '1.5'"),
    ("many,slow", "expected key=value after the name, got 'slow'"),
    ("many,size=1,size=2", "'size' is given twice"),
    ("many,dtype=int", "Unknown option 'dtype'"),
    ("plain,size=1", "it has no options"),
  ],
)
def test_errors(text, message):
  with pytest.raises(ValueError, match=message):
    options.parse("thing", text, TABLE)
