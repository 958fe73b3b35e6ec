"""Measures what LayerNorms in the stem would change for your data and model.

  python -m scripts.diagnose --config configs/digits.py:stem_ln=none
  python -m scripts.diagnose runs/digits --out diagnosis.html
  python -m scripts.diagnose vit.safetensors

It measures the conditioning of patches before and after a LayerNorm; the patch
embedding's share of the gradient and of the update in a short training; norms
of tokens and positions, entropy and largest logits of the attention; and how
much changes of brightness and contrast change the model's output, compared with
replacing each image by another.

The short training uses the config's optimizer and learning rate, but its own
warmup and decay: the config's warmup may be longer than all of it, and early in
a warmup, with a head that starts at zero, hardly any gradient reaches the
embedding.

For the folder of a run, it measures the final parameters as well, and the log
gives the gradient's share over the whole training. Images are those that the
config trains on, with its augmentation.

For a parameter file of any library it says, without data, what the norms and
the patch embedding have learned. scripts.convert tells what such a file may be;
--set gives model options that it lacks.
"""

import contextlib
import itertools
import json
import os

import ml_collections
import numpy as np
import pandas as pd
from absl import flags

from dpn import metrics
from dpn.input_pipeline import loader
from dpn.scripts import convert
from dpn.scripts.diagnosis import learned, measures, page
from dpn.scripts.evaluation import checkpoints
from dpn.scripts.results import output, studies
from dpn.trainers import build, cli, restore

READING = """\
How to read it: a LayerNorm improves the conditioning of nearly all patches. It
also hides each patch's brightness and contrast. Where the model should not
depend on these that may be a gain; where it should, a loss, unless
`config.model.stem = "patch_stats"` gives them back. To decide, train both with
three seeds or more
(docs/own_pictures.md)."""


def diagnose(
  config: ml_collections.ConfigDict,
  folder: str | None = None,
  *,
  steps: int = 100,
  examples: int = 1024,
  batch_size: int = 64,
) -> dict:
  """Returns all measurements, ready to be written as JSON.

  Args:
    config: of a run. Its evaluators and devices are not used.
    folder: of that run, to measure its final parameters, too.
    steps: of the short training.
    examples: images to measure the conditioning on.
    batch_size: of everything, unless the config's is smaller.

  Raises:
    ValueError, OSError: the config, its data or the run is wrong; or the model
      has no patches.
  """
  size = min(batch_size, config.input.batch_size)
  run = build.from_config(short_config(config, steps, size))
  task = run.step.task
  predict = task.predict_fns().get("predict")
  patch_size = task.model_options().get("patch_size")
  if not (predict and patch_size):
    raise ValueError(
      "Only tasks that predict with one Vision Transformer can be diagnosed; "
      f"config.task is {config.get('task', 'classification')!r}."
    )
  start = _start(run, folder)
  end = {"end": restore.load_file(folder, task, start)} if folder else {}
  batches = -(-min(examples, run.data.num_examples) // size)
  pixels = build.pixels(run.config)
  images = itertools.islice(_images(run.data, pixels), batches)
  found = {
    "examples": min(batches * size, run.data.num_examples),
    "batch_size": size,
    "patch_size": list(patch_size),
    "stem_ln": task.model_options()["stem_ln"],
    "data": run.data.examples.source.name,
    "patches": measures.conditioning(images, patch_size),
  }
  trained, found["short_training"] = measures.short_training(run)
  with contextlib.closing(run.batches(0)) as batches:
    batch = next(batches)
  stages = {"start": start, f"step {steps}": trained, **end}
  if folder:
    log = metrics.read(os.path.join(folder, metrics.METRICS))
    found["logged"] = measures.logged(log)
  found["signals"] = {
    name: measures.signals(predict, variables, batch)
    for name, variables in stages.items()
  }
  last = [*stages][-1]
  changes = measures.invariance(predict, stages[last], batch)
  found["invariance"] = {"of": last, **changes}
  return found


def _start(run: build.Run, folder: str | None):
  """Returns the variables that training begins with."""
  try:
    return restore.first_state(run)[0].variables
  except FileNotFoundError as e:
    if not folder:
      raise
    raise FileNotFoundError(
      f"{e} The run in {folder} started from it, and its diagnosis does. Put "
      f"it there, or diagnose the run's parameters alone, as {folder}/"
      "params.safetensors."
    ) from e


def short_config(
  config: ml_collections.ConfigDict, steps: int, batch_size: int
) -> ml_collections.ConfigDict:
  """Returns the config of a short training on all devices."""
  # A state to resume from would be beyond the end of the short schedule.
  dropped = {k for k in config if k == "resume" or k.startswith("total_")}
  fields = {k: v for k, v in config.to_dict().items() if k not in dropped}
  fields |= {"log_grad_depth": True, "grad_accum": 1, "evals": {}}
  fields |= {"mesh": [("data", -1)], "sharding_strategy": []}
  config = ml_collections.ConfigDict(fields | {"total_steps": steps})
  config.input.batch_size = batch_size
  given = config.get("schedule") or {}
  with config.ignore_type():
    config.schedule = (
      [(pattern, _schedule(kw)) for pattern, kw in given]
      if isinstance(given, list | tuple)
      else _schedule(given)
    )
  return config


def _schedule(given):
  """Returns a warmup and a decay to 0; None, for frozen parameters, stays."""
  if given is None:
    return None
  scale = ("mult", "base", "scale_with_batchsize")
  kept = {key: given[key] for key in scale if key in given}
  return {"warmup_percent": 0.1, "decay_type": "cosine", **kept}


def _images(data: loader.Data, pixels):
  """Yields batches of images, pixels from -1 to 1 as our studies had them.

  If how they were normalized is unknown, they stay as the model sees them.
  """
  with contextlib.closing(data.batches()) as batches:
    for batch in batches:
      image = np.asarray(batch["image"], np.float32)
      if pixels:
        mean, std = pixels.of(image.shape[-1])
        image = 2 * (image * std + mean) - 1
      yield image


def tables(found: dict) -> list[pd.DataFrame]:
  """Returns tables of patches, of signals, and of changed images."""
  signals = {name: _signals(part) for name, part in found["signals"].items()}
  changes = pd.DataFrame(found["invariance"]["changes"]).map("{:.2f}".format)
  return [
    measures.spectra(found["patches"]),
    pd.DataFrame.from_dict(signals, orient="index"),
    changes.set_index("contrast"),
  ]


def texts(found: dict) -> list[str]:
  """Returns what the numbers are about, and what they mean."""
  rows, cols = found["patch_size"]
  return [
    f"{found['data']}: {found['examples']} images, patches of {rows}×{cols} "
    f"pixels ({len(found['patches']['raw']['spectrum'])} numbers), "
    f"stem_ln={found['stem_ln']}, batches of {found['batch_size']}.",
    shares(found),
    f"Changes of the model ({found['invariance']['of']}) are of images x that "
    f"become contrast · x + brightness. {in_comparison(found)}",
    studies.beside(
      found["patches"]["LayerNorm"]["effective_rank"]
      / found["patches"]["raw"]["effective_rank"]
    ),
    READING,
  ]


def shares(found: dict) -> str:
  """Returns a sentence on the embedding's share of gradient and update."""
  short = found["short_training"]
  steps = len(short["loss"])
  late = {name: np.median(x[steps // 2 :]) for name, x in short.items()}
  words = (
    f"The patch embedding's share of the norm, median of the second half of "
    f"{steps} steps: gradient {late['gradient']:.0%}, update "
    f"{late['update']:.0%}. Their loss went from {short['loss'][0]:.2f} to "
    f"{np.mean(short['loss'][-max(1, steps // 10) :]):.2f} (mean of the last "
    "tenth)."
  )
  log = found.get("logged", {}).get("gradient")
  if log:
    words += f" Gradient over the whole run: {np.median(log):.0%}."
  return words


def in_comparison(found: dict) -> str:
  """Returns a sentence on how well the model tells images apart."""
  if found["batch_size"] == 1:
    return "A batch of one image has no other to compare this with."
  stage, other = (found["invariance"][k] for k in ("of", "another_image"))
  words = (
    "In comparison, another image in its place changes tokens by "
    f"{other['tokens']:.2f} and the representation by "
    f"{other['representation']:.2f}; {other['same_prediction']:.0%} of the "
    "predictions stay."
  )
  if other["same_prediction"] == 1:
    words += (
      f" So the model ({stage}) predicts the same for all images of this "
      "batch. Unless they are of one class, it has not learned anything yet, "
      "and its gradient and changes say little: try more --steps, a lower "
      "--config.lr, or a trained run."
    )
  return words


def _signals(part):
  """Returns the row of a table that shows `measures.signals`."""
  low, _, middle, _, high = part["token_norms"]
  row = {"tokens' norm (5–95%)": f"{middle:.2f} ({low:.2f}–{high:.2f})"}
  if "position_norms" in part:
    row["positions' norm"] = f"{part['position_norms'][2]:.2f}"
  entropy = part["attention_entropy"]
  row["attention entropy"] = f"{min(entropy):.2f}–{max(entropy):.2f}"
  return row | {"largest logit": f"{max(part['largest_logit']):.1f}"}


def from_file(
  path: str, told: list[str]
) -> tuple[dict, list[str], list[pd.DataFrame]]:
  """Returns what a parameter file shows: numbers, texts and tables."""
  model = convert.read(path, convert.parse_options(told))
  found = learned.learned(model)
  notes = [note for note in model.notes if note.startswith("Assumed")]
  return found, [learned.text(path, found), *notes], learned.tables(found)


def main(folder: str | None = None):
  if bool(folder) == bool(_CONFIG.value):
    raise ValueError("Give either --config or the folder of a run.")
  config = _CONFIG.value
  if folder and not os.path.isfile(folder):
    # With config.model_init, from which the short training starts, too.
    config = ml_collections.ConfigDict(checkpoints.config_beside(folder))
  wrong = (_SET,) if config else (_STEPS, _EXAMPLES, _BATCH_SIZE)
  if given := [f"--{flag.name}" for flag in wrong if flag.present]:
    kinds = ["a run or --config", "a file or folder of parameters alone"]
    of, got = reversed(kinds) if config else kinds
    raise ValueError(
      f"{', '.join(given)} is only for {of}, and this is {got}. Leave it out."
    )
  with output.ensure_folder(os.path.dirname(_OUT.value or "")):
    pass  # If it cannot be written, fail before the work.
  if folder and not config:
    found, about, shown = from_file(folder, _SET.value)
    meaning = [learned.READING]
    title, picture = "What was learned", learned.picture
  else:
    found = diagnose(
      config,
      folder,
      steps=_STEPS.value,
      examples=_EXAMPLES.value,
      batch_size=_BATCH_SIZE.value,
    )
    (first, *meaning), shown = texts(found), tables(found)
    about, title, picture = [first], f"Diagnosis: {found['data']}", page.picture
  grids = [table.to_string() for table in shown]
  output.say("\n\n".join([*about, *grids, *meaning]))
  if _JSON.value:
    output.write(_JSON.value, json.dumps(found) + "\n")
  if _OUT.value:
    words = [*about, *meaning]
    output.write(_OUT.value, page.page(title, words, shown, picture(found)))


if __name__ == "__main__":
  _CONFIG = cli.define_config()
  _STEPS = flags.DEFINE_integer("steps", 100, "Steps to train.", 2)
  _EXAMPLES = flags.DEFINE_integer("examples", 1024, "Images to measure.", 1)
  _BATCH_SIZE = flags.DEFINE_integer(
    "batch_size", 64, "Images at a time, unless the config's is smaller.", 1
  )
  _JSON = flags.DEFINE_string("json", None, "JSON file for all numbers.")
  _OUT = flags.DEFINE_string("out", None, "HTML file for the figures.")
  _SET = flags.DEFINE_multi_string(
    "set", [], "Options that a parameter file does not tell: num_heads=3."
  )
  cli.run(main, [], ["RUN"])
