"""A table of what configs need on pods; each row is compiled on its own."""

import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence

from dpn.scripts.compilation import fit
from dpn.scripts.results import output

_SCAN = "--config.model.scan=True --config.model.dtype_mm=bfloat16"
_TOWERS = " ".join(
  f"--config.model.{tower}.{option}"
  for tower in ("image", "text")
  for option in ("scan=True", "dtype_mm=bfloat16")
)
_PAIRS = "vocab=bytes,vocab_size=32000"
# Every full-scale recipe, the most asked for first; those with few images name
# the pod that they fill. What is loaded, and from where, is not compiled.
CASES = (
  f"augreg_i1k.py:variant=B/16 {_SCAN}",
  f"finetune_i1k.py:variant=B/16,init=x {_SCAN}",
  f"jft.py:variant=L/16,data=x,classes=29593 {_SCAN}",
  f"lit.py:init=x,{_PAIRS} {_TOWERS}",
  f"ade20k.py:init=x {_SCAN} v5e:4x4",
  f"jft.py:variant=B/16,data=x,classes=29593 {_SCAN}",
  f"augreg_i1k.py:variant=S/16 {_SCAN}",
  f"finetune_i1k.py:variant=L/16,init=x {_SCAN}",
  f"deit_i1k.py:variant=B/16 {_SCAN}",
  f"siglip.py:{_PAIRS} {_TOWERS}",
  f"augreg_i1k.py:variant=L/16 {_SCAN}",
  f"augreg_i21k.py:variant=B/16,data=x {_SCAN}",
  f"s16_plus_i1k.py {_SCAN}",
  f"vtab.py:task=CIFAR-100,init=x {_SCAN}",
  f"augreg_i1k.py:variant=B/32 {_SCAN}",
  f"augreg_i1k.py:variant=Ti/16 {_SCAN}",
  f"vit5_i1k.py:variant=B/16 {_SCAN}",
)
_BEGIN, _END = "<!-- scripts.compile --table -->", "<!-- end of the table -->"
_GIB = 2**30


def rebuild(path: str, targets: Sequence[str]):
  """Compiles all cases for targets, and puts the table into a page.

  Rows are kept in the .jsonl file beside the page and not compiled again, so
  this goes on where it stopped.

  Args:
    path: a Markdown page, in which two comments enclose the table.
    targets: for cases that do not name their own.

  Raises:
    ValueError, OSError: a case failed, and not because it does not fit, or the
      page has no such comments.
  """
  archive = f"{os.path.splitext(path)[0]}.jsonl"
  for case in CASES:
    config, *flags = case.split()
    own = [word for word in flags if not word.startswith("--")]
    for target in own or targets:
      key = {"config": config, "target": target}
      if not any(key.items() <= row.items() for row in read(archive)):
        words = [x for x in flags if x not in own]
        append(archive, key | _compiled(config, target, words))
  table = f"\n{markdown(read(archive))}\n"
  output.replace_between(path, _BEGIN, _END, table)


def markdown(rows: Sequence[Mapping]) -> str:
  """Returns rows of `rebuild` as a table."""
  lines = [
    "| config | devices | GiB a chip, of | compute | memory | links, ms "
    "| MFU at most | images/s at most | hours at least | compiles in, s |",
    "|---|---|--:|--:|--:|--:|--:|--:|--:|--:|",
  ]
  for row in rows:
    start = f"| `{row['config']}`{_fit(row)} | `{row['target']}` | "
    if error := row.get("error"):
      lines.append(f"{start}{error.replace('|', '/')} |" + " |" * 7)
      continue
    gib = sum(row["memory"].values()) / _GIB
    cells = [
      f"{gib:.1f} of {row['memory_of_device'] / _GIB:.0f}",
      *bounds(row),
      f"{row['mfu_at_most']:.0%}",
      f"{row['images_per_sec_at_most']:,.0f}",
      f"{row['hours_at_least']:.2f}",
      f"{row['compile_secs']:.0f}",
    ]
    lines.append(f"{start}{' | '.join(cells)} |")
  return "\n".join(lines)


def bounds(row: Mapping) -> list[str]:
  """Returns the bounds of a step in ms, the one that counts in bold."""
  return [
    f"**{secs * 1e3:.1f}**" if kind == row["bound"] else f"{secs * 1e3:.1f}"
    for kind, secs in row["seconds_at_least"].items()
  ]


def _fit(row):
  """Returns the flags with which a config fits; "" if it needs none."""
  return f", `{fit.flags(row['fit'])}`" if row.get("fit") else ""


def append(archive: str, row: Mapping):
  """Adds a row to a file that `read` reads."""
  folder = output.ensure_folder(os.path.dirname(archive))
  with folder, open(archive, "a", encoding="utf-8") as f:
    f.write(f"{json.dumps(row)}\n")


def read(archive: str) -> list[dict]:
  """Returns the rows of a file; none if it is not there."""
  if not os.path.exists(archive):
    return []
  with open(archive, encoding="utf-8") as f:
    return [json.loads(line) for line in f]


def _compiled(config, target, flags):
  """Returns what scripts.compile says of a case, run in its own process.

  Raises:
    ValueError: it failed, and not because nothing makes the case fit.
  """
  with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "row.json")
    command = [sys.executable, "-m", "scripts.compile", "--target", target]
    command += ["--config", f"configs/{config}", *flags, "--json", path]
    command += ["--fit"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if os.path.exists(path):
      with open(path, encoding="utf-8") as f:
        return json.load(f)
  said = done.stderr.strip()
  if fit.HOPELESS in said:
    lines = [x for x in said.splitlines() if x.startswith("Error: ")]
    return {"error": lines[-1].strip()}
  raise ValueError(
    f"{shlex.join(command[1:])} ended with status {done.returncode}: "
    f"{said[-1000:] or 'nothing said'}"
  )
