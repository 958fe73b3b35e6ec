"""Says what a classifier sees in pictures.

  python -m scripts.predict runs/flowers new.jpg folder/of/pictures
  python -m scripts.predict runs/flowers folder --out seen.csv --picture p.png

Pictures are prepared as for the run's evaluation. Prints the likeliest classes
of each, with their probabilities (if the loss was sigmoid_xent, each class's
own); their names are the config's class_names, or else numbers. --out writes
the table as JSON or CSV, --picture draws the pictures as the model saw them.
"""

import argparse
import os
from collections.abc import Iterator, Sequence

import jax
import matplotlib
import ml_collections
import numpy as np
import pandas as pd

import dpn.tasks
from dpn.input_pipeline import pp
from dpn.scripts import show_batch
from dpn.scripts.results import output, render, runs
from dpn.weights import load, pixels

BATCH_SIZE = 32


def predict(run: str, paths: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
  """Returns pictures as the model saw them, and probabilities.

  Args:
    run: the folder of a run that classifies.
    paths: of pictures.

  Returns:
    (pictures, rows, cols, channels) in the model's range, and (pictures,
    classes).

  Raises:
    ValueError, OSError: this is no such run, or there is no such picture.
  """
  config = ml_collections.ConfigDict(runs.read(run).config)
  spec = _evaluation(config, run)
  pp.add_modules(config.get("pp_modules") or ())
  prepare = pp.make(spec)
  images = np.stack([_prepared(prepare, path) for path in paths])
  task = dpn.tasks.make(config)
  shape = (BATCH_SIZE, *images.shape[1:])
  batch = {
    "image": jax.ShapeDtypeStruct(shape, images.dtype),
    "labels": jax.ShapeDtypeStruct((BATCH_SIZE, config.num_classes), "float32"),
  }
  variables = load.load_variables(
    run,
    jax.eval_shape(task.init, jax.random.key(0), batch),
    options=task.model_options(),
    pixels=pixels.of_pp(spec),
  )
  each_own = config.get("loss", "sigmoid_xent") == "sigmoid_xent"
  activation = jax.nn.sigmoid if each_own else jax.nn.softmax
  function = jax.jit(
    lambda variables, image: activation(
      task.predict_fns()["predict"](variables, {"image": image})[0]
    )
  )
  found = []
  for begin in range(0, len(images), BATCH_SIZE):
    part = images[begin : begin + BATCH_SIZE]
    rest = [(0, BATCH_SIZE - len(part))] + [(0, 0)] * (part.ndim - 1)
    found.append(function(variables, np.pad(part, rest))[: len(part)])
  return images, np.concatenate(jax.device_get(found))


def _evaluation(config, run):
  """Returns how evaluation prepares images."""
  for name, section in (config.get("evals") or {}).items():
    if section.get("type", name) == "classification":
      return section["pp_fn"]
  raise ValueError(
    f"{run} has no evaluator of type 'classification', whose pp_fn would say "
    "how to prepare pictures."
  )


def _prepared(prepare, path):
  with open(path, "rb") as file:
    # The label that evaluation needs is any.
    example = {"image": file.read(), "label": 0, "id": path}
  try:
    return prepare(example, np.random.default_rng(0))["image"]
  except ValueError as e:
    raise ValueError(f"{path}: {e}") from e


def pictures(paths: Sequence[str]) -> Iterator[str]:
  """Yields files, of folders all that are not hidden, in order."""
  for path in paths:
    if not os.path.isdir(path):
      yield path
      continue
    for folder, inside, files in os.walk(path):
      inside.sort()
      visible = sorted(name for name in files if name[0] != ".")
      yield from (os.path.join(folder, name) for name in visible)


def table(
  paths: Sequence[str],
  probabilities: np.ndarray,
  names: Sequence[str],
  top: int,
) -> pd.DataFrame:
  """Returns a row per picture: file, then class and probability, by rank."""
  order = np.argsort(-probabilities, axis=1, kind="stable")[:, :top]
  rows = []
  for path, values, best in zip(paths, probabilities, order, strict=True):
    row = {"file": path}
    for rank, k in enumerate(best, 1):
      row |= {
        f"class {rank}": names[k],
        f"probability {rank}": round(float(values[k]), 4),
      }
    rows.append(row)
  return pd.DataFrame(rows)


def main(argv: Sequence[str] | None = None):
  parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
  parser.add_argument("run", help="its folder, or a parameter file in it")
  parser.add_argument("pictures", nargs="+", help="files or folders")
  parser.add_argument("--top", type=int, default=3, help="classes to name")
  parser.add_argument("--out", metavar="FILE", help=".json or .csv")
  parser.add_argument("--picture", metavar="FILE", help=".png, .pdf …")
  args = parser.parse_args(argv)
  if args.out and not args.out.endswith((".csv", ".json")):
    parser.error(f"--out {args.out}: expected a name in .json or .csv")
  with output.errors_in_a_line():
    paths = [*pictures(args.pictures)]
    if not paths:
      raise ValueError(f"No file in {', '.join(args.pictures)}.")
    images, probabilities = predict(args.run, paths)
    names = runs.read(args.run).config.get("class_names")
    names = names or [str(k) for k in range(probabilities.shape[1])]
    frame = table(paths, probabilities, names, args.top)
    output.say(render.grid(frame))
    if args.out:
      as_json = args.out.endswith(".json")
      text = (
        frame.to_json(orient="records", indent=2, force_ascii=False) + "\n"
        if as_json
        else render.as_csv(frame)
      )
      output.write(args.out, text)
    if args.picture:
      _draw(args.picture, images, frame)


def _draw(path, images, frame):
  matplotlib.use("agg")
  low, high = images.min(), images.max()
  texts = [
    f"{row['class 1']} {row['probability 1']:.0%}\n{os.path.basename(row.file)}"
    for _, row in frame.iterrows()
  ]
  shown = (images - low) / max(high - low, 1e-9)
  sheet = show_batch.sheet(shown, texts, "", [], cols=min(8, len(images)))
  with output.made(os.path.dirname(path)):
    sheet.savefig(path)
  output.say(f"Wrote {path}.")


if __name__ == "__main__":
  main()
