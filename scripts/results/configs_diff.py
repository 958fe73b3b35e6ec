"""Says how the configs of several runs differ."""

import collections
import json
from collections.abc import Sequence

from scripts.results import cells, runs

ABSENT = "absent"


def groups(
  found: Sequence[runs.Run],
) -> tuple[str, list[tuple[str, list[runs.Run]]]]:
  """Returns the most common config, and runs by how theirs differs from it.

  Returns:
    A line "field = value" for each field, with the value that most runs have;
    and (the differing fields in this form, the runs), most common first.
  """
  flat = [cells.flatten(run.config) for run in found]
  common = {
    name: _most_common([_text(config.get(name, ABSENT)) for config in flat])
    for name in sorted({name for config in flat for name in config})
  }
  grouped = collections.defaultdict(list)
  for run, config in zip(found, flat, strict=True):
    values = {name: _text(config.get(name, ABSENT)) for name in common}
    different = [
      f"{name.replace('/', '.')} = {value}"
      for name, value in values.items()
      if value != common[name] and not cells.is_free(name)
    ]
    grouped["; ".join(different)].append(run)
  listing = [
    f"{name.replace('/', '.')} = {value}"
    for name, value in common.items()
    if value != ABSENT
  ]
  by_count = sorted(grouped.items(), key=lambda item: -len(item[1]))
  return "\n".join(listing), by_count


def _text(value):
  return value if value == ABSENT else json.dumps(value, ensure_ascii=False)


def _most_common(values):
  return collections.Counter(values).most_common(1)[0][0]
