"""Evaluates a checkpoint; nothing is trained.

  python -m scripts.evaluate runs/dpn
  python -m scripts.evaluate runs/dpn --data /photos --shots 1,5,10
  python -m scripts.evaluate --evals fewshot --out probe.json \
    --config configs/fewshot.py:variant=B/16,stem_ln=none --checkpoint b16.npz

A run's folder, or one of its checkpoints (…/checkpoints/1000), is evaluated by
the evaluators of its own config, or by those that --evals names. Of a folder,
the newest parameters are used.

With --data, any checkpoint of a Vision Transformer (also a parameter file of a
supported library) is probed on your data: a linear classifier is trained on a
few pictures of each class, --shots, and tested on others. The data are a
folder, /photos/<class>/<file> or /photos/train/… with /photos/val/…, or
anything that config.input.data.name can be. Model and preprocessing are read
from the checkpoint, or --arch gives timm's name of the model; the splits are
found in the data, or --splits names them.

With --config, its evaluators run on --checkpoint, which is anything that
config.model_init can be and holds the model that the config describes. The
config's model_init, optimizer and training data are not used. The head is
loaded unless all evaluators probe a representation.

Prints a table; --out writes a row like those of metrics.jsonl.
"""

import json
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

import ml_collections
from absl import flags

from dpn import damage
from dpn.scripts.evaluation import checkpoints, probe
from dpn.scripts.results import output
from dpn.trainers import cli


def evaluate(
  config: ml_collections.ConfigDict, path: str, evals: Sequence[str] = ()
) -> dict[str, Any]:
  """Returns `{"step": …, "<evaluator>/<metric>": …}`.

  For arguments and errors see `checkpoints.prepare`; it also raises
  errors.EvaluatorError if an evaluator fails.
  """
  with damage.reading(f"{path}, or its config,"):
    evaluators, variables, step = checkpoints.prepare(config, path, evals)
  row = {"step": step}
  for evaluator in evaluators:
    row |= evaluator.run(variables)
  return row


def table(row: Mapping[str, Any]) -> str:
  """Returns the row as lines of name and value, leaving out single seeds."""
  shown = {
    key: f"{value:.4f}" if isinstance(value, float) else value
    for key, value in row.items()
    if not re.search(r"-seed-\d+$", key)
  }
  if row["step"] is None:
    shown["step"] = "unknown"
  width = max(map(len, shown))
  return "\n".join(f"{key:<{width}}  {text}" for key, text in shown.items())


def main(run: str | None = None):
  path = run or _CHECKPOINT.value
  _check_flags(run)
  with output.ensure_folder(os.path.dirname(_OUT.value or "")):
    pass  # If it cannot be written, fail before the work.
  if _DATA.value:
    shots = [*map(int, _SHOTS.value)]
    splits = _SPLITS.value or ()
    row = probe.probe(
      path, _DATA.value, shots=shots, splits=splits, arch=_ARCH.value
    )
  else:
    config = _CONFIG.value or checkpoints.config_of(path)
    row = evaluate(config, path, _EVALS.value or ())
  print(table(row))
  if _OUT.value:
    output.write(_OUT.value, json.dumps(row) + "\n")


def _check_flags(run):
  """Raises an error unless the flags make sense together."""
  if (run is None) == (_CHECKPOINT.value is None):
    raise ValueError(
      "expected the folder of a run or another checkpoint, once: "
      "scripts.evaluate RUN, or --config C --checkpoint RUN."
    )
  given = {flag.name for flag in (_CONFIG, _EVALS) if flag.value is not None}
  if _DATA.value and given:
    raise ValueError(f"--data does not go with --{', --'.join(sorted(given))}.")
  given = [flag.name for flag in (_SHOTS, _SPLITS, _ARCH) if flag.present]
  if given and not _DATA.value:
    raise ValueError(f"--{', --'.join(given)} needs --data.")
  if not all(text.isdecimal() and int(text) for text in _SHOTS.value):
    raise ValueError(
      f"--shots={','.join(_SHOTS.value)}: expected numbers of pictures, such "
      "as 1,5."
    )
  if _SPLITS.value and len(_SPLITS.value) != 2:
    raise ValueError(
      f"--splits={','.join(_SPLITS.value)}: expected one to learn from and one "
      "for the test, such as train,validation."
    )


if __name__ == "__main__":
  _CONFIG = cli.define_config()
  _CHECKPOINT = flags.DEFINE_string("checkpoint", None, "Of --config's model.")
  _EVALS = flags.DEFINE_list("evals", None, "Names of evaluators (all).")
  _DATA = flags.DEFINE_string("data", None, "Folder of images, or data set.")
  _SHOTS = flags.DEFINE_list("shots", "1,5,10,25", "With --data: per class.")
  _SPLITS = flags.DEFINE_list("splits", None, "With --data: train,test.")
  _ARCH = flags.DEFINE_string("arch", None, "With --data: timm's name.")
  _OUT = flags.DEFINE_string("out", None, "JSON file to write.")
  cli.run(main, required=(), optional=["run"])
