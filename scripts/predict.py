"""Classifies pictures.

  python -m scripts.predict runs/flowers new.jpg folder/of/pictures
  python -m scripts.predict runs/flowers folder --out seen.csv --picture p.png

The model is a run's, or any other checkpoint of a classifier. Pictures are
prepared as for its evaluation. For each picture it prints the likeliest classes
with their probabilities (independent ones, if the loss was sigmoid_xent), named
if the checkpoint has names of classes, or else numbered. --out writes the table
as JSON or CSV, --picture draws the pictures, at most 32, as the model saw them.
"""

import os
from collections.abc import Iterator, Sequence

import jax
import matplotlib
import numpy as np
import pandas as pd

from dpn import image_files
from dpn.input_pipeline import images, pp
from dpn.models import vit
from dpn.scripts.evaluation import checkpoints, labels
from dpn.scripts.results import output, render
from dpn.scripts.show import sheet

BATCH_SIZE = 32


def predict(
  checkpoint: str, paths: Sequence[str]
) -> tuple[np.ndarray, np.ndarray, list[str]]:
  """Returns some pictures as the model saw them, probabilities of all, names.

  Args:
    checkpoint: of a classifier, see `vit.from_pretrained`.
    paths: of pictures.

  Returns:
    (first BATCH_SIZE pictures, rows, cols, channels) in the model's range,
    (pictures, classes), and the classes' names or numbers.

  Raises:
    ValueError, OSError: there is no classifier, or no such picture.
  """
  config = checkpoints.config_beside(checkpoint)
  if (task := config.get("task", "classification")) != "classification":
    raise ValueError(f"{checkpoint} is a run of {task}; expected a classifier.")
  pp.add_modules(config.get("pp_modules") or ())
  model, variables, preprocess = vit.from_pretrained(checkpoint)
  if not model.num_classes:
    raise ValueError(f"{checkpoint} has no head, so it knows no classes.")
  names, loss = labels.read(checkpoint, model.num_classes)
  activation = jax.nn.sigmoid if loss == "sigmoid_xent" else jax.nn.softmax
  function = jax.jit(
    lambda variables, image: activation(model.apply(variables, image)[0])
  )
  seen, found = None, []
  for begin in range(0, max(len(paths), 1), BATCH_SIZE):
    part = images.prepare(paths[begin : begin + BATCH_SIZE], preprocess)
    seen = part if seen is None else seen
    rest = [(0, BATCH_SIZE - len(part))] + [(0, 0)] * (part.ndim - 1)
    found.append(function(variables, np.pad(part, rest))[: len(part)])
  result = np.concatenate(jax.device_get(found))
  if not np.isfinite(result).all():
    raise ValueError(f"{checkpoint} gives NaN: numbers in it are too large.")
  return seen, result, names or [*map(str, range(model.num_classes))]


def pictures(paths: Sequence[str]) -> Iterator[str]:
  """Yields files; of a folder, all its images that are not hidden, in order."""
  for path in paths:
    if os.path.isdir(path):
      yield from (os.path.join(path, x) for x in image_files.images(path))
    else:
      yield path


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
  parser = output.parser(__doc__)
  parser.add_argument("checkpoint", help="run folder or parameter file")
  parser.add_argument("pictures", nargs="+", help="image files or folders")
  help_ = "number of classes to print for each image (3)"
  parser.add_argument("--top", type=output.positive, default=3, help=help_)
  parser.add_argument("--out", metavar="FILE", help="table, .json or .csv")
  parser.add_argument("--picture", metavar="FILE", help="drawing, .png, .pdf …")
  output.add_trust(parser)
  args = parser.parse_args(argv)
  if args.out and not args.out.endswith((".csv", ".json")):
    parser.error(f"--out {args.out}: expected a name in .json or .csv")
  with output.errors_in_a_line():
    paths = [*pictures(args.pictures)]
    if not paths:
      known = ", ".join(image_files.SUFFIXES)
      raise ValueError(f"No {known} in {', '.join(args.pictures)}.")
    seen, probabilities, names = predict(args.checkpoint, paths)
    frame = table(paths, probabilities, names, args.top)
    output.say(render.grid(frame))
    if args.out:
      if args.out.endswith(".json"):
        kw = {"orient": "records", "indent": 2, "force_ascii": False}
        text = frame.to_json(**kw) + "\n"
      else:
        text = render.as_csv(frame)
      output.write(args.out, text)
    if args.picture:
      _draw(args.picture, seen, frame)


def _draw(path, seen, frame):
  matplotlib.use("agg")
  frame = frame[: len(seen)]
  names = map(os.path.basename, frame["file"])
  shares = frame["probability 1"].map("{:.0%}".format)
  texts = map("{} {}\n{}".format, frame["class 1"], shares, names)
  cells = [*map(sheet.Cell, texts, sheet.stretched(seen))]
  drawn = sheet.draw(cells, min(8, len(seen)))
  output.save(drawn, path)


if __name__ == "__main__":
  main()
