"""Draws label maps that runs of segmentation predict, beside the truth.

  python -m scripts.show_predictions runs/camvid/none-s0 runs/camvid/dpn-s0

For some images of an evaluator's data: image, truth and, of each run, what it
predicts and where it errs. The picture is written to the first run's folder,
where scripts.report finds it.
"""

import argparse
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib import colors, figure, patches

from dpn.scripts import evaluate
from dpn.scripts.results import classes, output
from dpn.scripts.show import label_maps

SHADES = colors.to_rgba_array(["crimson", "0.85", "black"])[:, :3]


def predict(
  path: str, places: Sequence[int] | None, name: str | None = None
) -> tuple[list[str], list[tuple[int, Mapping[str, Any], np.ndarray]]]:
  """Returns the names of the classes and what a run predicts.

  Args:
    path: of the run.
    places: which images of the evaluator's data; None for four, evenly spaced.
    name: of the evaluator; that of config.table.metric without it.

  Returns:
    Names, and (index, example, predicted map) of each image.

  Raises:
    ValueError, OSError: it is no run of segmentation, or has no such data.
  """
  config, evaluator, variables = evaluate.of_run(path, "segmentation", name)
  if places is None:
    count = evaluator.num_examples
    places = [(2 * i + 1) * count // 8 for i in range(4)]
  classes = config["num_classes"]
  names = list(evaluator.class_names) or [str(k) for k in range(classes)]
  return names, list(evaluator.predictions(variables, places))


def draw(
  titles: Sequence[str],
  names: Sequence[str],
  predicted: Sequence[list[tuple[int, Mapping[str, Any], np.ndarray]]],
) -> figure.Figure:
  """Returns rows of images: truth, and of each run prediction and error.

  Args:
    titles: of the runs.
    names: of the classes.
    predicted: by run, from `predict`.
  """
  rows, cols = len(predicted[0]), 2 + 2 * len(predicted)
  truth = [example["labels"] for _, example, _ in predicted[0]]
  for title, maps in zip(titles, predicted, strict=True):
    if not all(
      np.array_equal(example["labels"], labels)
      for (_, example, _), labels in zip(maps, truth, strict=True)
    ):
      raise ValueError(f"{title} and {titles[0]} were not given the same data.")
  legend = label_maps.legend(np.concatenate([x.ravel() for x in truth]), names)
  legend += [("right", SHADES[1]), ("wrong", SHADES[0])]
  tall = max(x.shape[0] / x.shape[1] for x in truth)
  height = 2.4 * tall * rows + 1.0
  fig = figure.Figure(figsize=(2.4 * cols, height), dpi=120)
  axes = fig.subplots(rows, cols, squeeze=False)
  for row, (labels, *runs) in enumerate(zip(truth, *predicted, strict=True)):
    index, example, _ = runs[0]
    image = np.float32(example["image"])
    image = (image - image.min()) / max(np.ptp(image), 1e-9)
    _show(axes[row, 0], image, f"image {index}")
    _show(axes[row, 1], label_maps.in_colour(labels, len(names)), "truth")
    for title, (_, _, found), pair in zip(
      titles, runs, axes[row, 2:].reshape(-1, 2), strict=True
    ):
      known = labels < len(names)
      found = np.where(known, found, len(names))
      right = f"{np.mean(labels[known] == found[known]):.1%} right"
      _show(pair[0], label_maps.in_colour(found, len(names)), title)
      _show(pair[1], SHADES[np.where(known, labels == found, 2)], right)
  fig.legend(
    handles=[patches.Patch(color=c, label=name) for name, c in legend],
    loc="lower center",
    ncols=min(len(legend), 4 * cols // 3),
    fontsize=8,
    frameon=False,
  )
  fig.subplots_adjust(0.01, 0.7 / height, 0.99, 1 - 0.3 / height, 0.04, 0.15)
  return fig


def _show(ax, image, title):
  ax.imshow(image, interpolation="nearest")
  ax.set_title(title, fontsize=8, pad=2)
  ax.set_axis_off()


def main(argv: Sequence[str] | None = None):
  parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
  parser.add_argument("runs", nargs="+", help="folders of runs")
  parser.add_argument("--images", nargs="+", type=int, help="which, from 0")
  parser.add_argument("--evaluator", help="that of the runs' metric by default")
  parser.add_argument("-o", "--output", metavar="FILE")
  args = parser.parse_args(argv)
  titles = [os.path.basename(os.path.abspath(path)) for path in args.runs]
  target = args.output or os.path.join(args.runs[0], classes.PICTURE)
  with output.errors_in_a_line(), output.ensure_folder(os.path.dirname(target)):
    found = [predict(path, args.images, args.evaluator) for path in args.runs]
    draw(titles, found[0][0], [maps for _, maps in found]).savefig(target)
    output.say(f"Wrote {target}.")


if __name__ == "__main__":
  main()
