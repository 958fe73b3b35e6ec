"""Few-shot probes of any checkpoint on your own data.

The library behind `scripts.evaluate --data`. The model is found in the
checkpoint, the splits in the data.
"""

import os
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from dpn import errors, sharding
from dpn.configs import images
from dpn.evaluators import base, fewshot_lsr
from dpn.input_pipeline import pp, sources
from dpn.models import vit
from dpn.scripts.evaluation import checkpoints
from dpn.weights import preprocessing, source

PREFIX = "fewshot/"
BATCH_SIZE = 32  # on each device


def probe(
  path: str,
  data: str,
  *,
  shots: Sequence[int],
  splits: Sequence[str] = (),
  arch: str | None = None,
) -> dict[str, Any]:
  """Returns `{"step": …, "fewshot/<data>_<n>shot": accuracy, …}`.

  Prints what it was probed on.

  Args:
    path: of a checkpoint of a Vision Transformer, see `vit.from_pretrained`.
    data: a folder of pictures, or what config.input.data.name may be.
    shots: how many pictures of each class to learn from.
    splits: to learn from and to test on; found by looking if not given.
    arch: timm's name of the model, where the checkpoint does not tell it.

  Raises:
    ValueError, OSError: the checkpoint or the data cannot be read, or do not
      fit together.
    errors.EvaluatorError: the probe failed.
  """
  folder = os.path.abspath(os.path.expanduser(data))
  name = f"folder:{folder}" if os.path.isdir(folder) else data
  try:
    found = splits or find_splits(name)
    # A slice for the test is drawn at random: data may be sorted by class.
    seed = 0 if not splits and "[" in found[0] else None
    splits = found
    train, test = (
      sources.make({"name": name, "split": x, "subset_seed": seed})
      for x in splits
    )
  except (ValueError, OSError) as e:
    if ":" in name:
      raise
    raise ValueError(
      f"--data={data} is no folder here, and as a data set of TFDS: {e}"
    ) from e
  pp.add_modules(checkpoints.config_beside(path).get("pp_modules") or ())
  model, variables, preprocess = vit.from_pretrained(path, arch=arch)
  ops = _preprocessing(preprocess, train[0], name)
  title = re.sub(r":\d+\.\d+\.\d+$", "", name).partition(":")[2]
  title = os.path.basename(title.rstrip("/")) or name.partition(":")[0]
  print(
    f"Learning from {splits[0]!r} of {name} ({len(train):,} pictures), tested "
    f"on {splits[1]!r} ({len(test):,})."
  )
  mesh = sharding.make_mesh()
  evaluator = fewshot_lsr.Evaluator(
    lambda variables, batch: model.apply(variables, batch["image"]),
    mesh=mesh,
    batch_size=BATCH_SIZE * mesh.size,
    datasets={title: (name, *splits)},
    pp_train=ops,
    pp_eval=ops,
    shots=shots,
    subset_seed=seed,
  )
  evaluator.check(variables)
  scheduled = base.Scheduled("fewshot", evaluator, 1, PREFIX)
  return {"step": source.read(path, arch).step, **scheduled.run(variables)}


def find_splits(name: str) -> tuple[str, str]:
  """Returns the splits of a data source to learn from and to test on.

  If there is none to test on, a tenth of the others serves: `probe` draws it at
  random, but always the same one.
  """
  kind, _, folder = name.partition(":")
  if kind == "folder" and os.path.isdir(os.path.expanduser(folder)):
    found, _, _ = images.look(folder)
    return found["train"], found["val"]
  sources.make({"name": name, "split": "train"})  # its error is the user's
  for split in images.EVALUATION:
    try:
      sources.make({"name": name, "split": split})
    except ValueError:  # there is no such split
      continue
    return "train", split
  return "train[:90%]", "train[90%:]"


def _preprocessing(preprocess: preprocessing.Preprocess, example, name) -> str:
  """Returns the ops that turn an example like this one into a model's input.

  The data may be decoded or not, whatever the checkpoint's own data were.
  """
  for key in ("image", "label"):
    errors.check_known(f"key in examples of {name}:", key, example)
  rows, _, channels = preprocess.shape
  if rows is None:
    raise ValueError(
      "The checkpoint does not tell how large its pictures are. Give the "
      "folder of a run, whose config does, or --config with an evaluator."
    )
  ops = pp.replace(preprocess.pp, "decode", "")
  if isinstance(example["image"], bytes):
    ops = f"decode({channels})|{ops}"
  elif (shape := np.shape(example["image"]))[-1] != channels:
    raise ValueError(
      f"Pictures of {name} are {shape}; the model takes {channels} channels."
    )
  return f'{ops}|keep("image", "label")'
