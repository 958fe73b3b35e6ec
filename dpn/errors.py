"""Messages for unknown names: what was got, the nearest, all that are known."""

import difflib
from collections.abc import Iterable


def unknown(kind: str, got: str, known: Iterable[str]) -> str:
  """Returns "Unknown <kind> '<got>'. Did you mean 'x'? Known: x, y, z."."""
  known = sorted(map(str, known))
  near = difflib.get_close_matches(str(got), known, n=1, cutoff=0.5)
  hint = f" Did you mean {near[0]!r}?" if near else ""
  listed = ", ".join(known) or "none"
  return f"Unknown {kind} {got!r}.{hint} Known: {listed}."


def check_known(kind: str, got: str, known: Iterable[str]):
  """Raises ValueError, see `unknown`, if `got` is not among them."""
  if got not in [*known]:  # a list, as `got` may be anything
    raise ValueError(unknown(kind, got, known))
