"""Draws label maps that segmentation runs predict, beside the truth.

  python -m scripts.show_predictions runs/camvid/none-s0 runs/camvid/dpn-s0

For some images of an evaluator's data, it draws the image, the truth and, for
each run, its prediction and its errors. The picture is written to the first
run's folder, where scripts.report finds it.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib import colors, figure

from dpn.scripts.evaluation import checkpoints
from dpn.scripts.show import command, label_maps, sheet

WRONG, RIGHT, UNKNOWN = 0, 1, 2
SHADES = colors.to_rgba_array(["crimson", "0.85", "black"])[:, :3]


def predict(
  path: str, places: Sequence[int] | None, name: str | None = None
) -> tuple[list[str], list[tuple[int, Mapping[str, Any], np.ndarray]]]:
  """Returns the names of the classes and a run's predictions.

  Args:
    path: the run's folder.
    places: which images of the evaluator's data; None for four, evenly spaced.
    name: the evaluator's; by default config.table.metric's, else the first.

  Returns:
    Names, and (index, example, predicted map) of each image.

  Raises:
    ValueError, OSError: it is not a run of segmentation, or has no such data.
  """
  config, evaluator, variables = checkpoints.of_run(path, "segmentation", name)
  if places is None:
    places = command.spread(evaluator.num_examples)
  if not all(0 <= i < evaluator.num_examples for i in places):
    raise ValueError(
      f"--images {list(places)}: expected 0 to {evaluator.num_examples - 1}."
    )
  names = evaluator.class_names or map(str, range(config["num_classes"]))
  found = [
    (index, {**example, "labels": example[evaluator.label_key]}, predicted)
    for index, example, predicted in evaluator.predictions(variables, places)
  ]
  return list(names), found


def draw(
  titles: Sequence[str],
  names: Sequence[str],
  predicted: Sequence[list[tuple[int, Mapping[str, Any], np.ndarray]]],
) -> figure.Figure:
  """Returns rows of images: truth, and prediction and errors of each run.

  Args:
    titles: of the runs.
    names: of the classes.
    predicted: by run, from `predict`.
  """
  truth = [example["labels"] for _, example, _ in predicted[0]]
  cells = []
  for labels, *runs in zip(truth, *predicted, strict=True):
    index, example, _ = runs[0]
    known = (labels >= 0) & (labels < len(names))
    cells += [
      sheet.Cell(f"image {index}", sheet.stretched(example["image"])),
      sheet.Cell("truth", label_maps.in_colour(labels, len(names))),
    ]
    for title, (_, its_example, found) in zip(titles, runs, strict=True):
      if not np.array_equal(its_example["labels"], labels):
        raise ValueError(
          f"{title} and {titles[0]} were not given the same data."
        )
      found = np.where(known, found, len(names))
      shades = SHADES[np.where(known, labels == found, UNKNOWN)]
      right = np.mean(labels[known] == found[known])
      cells += [
        sheet.Cell(title, label_maps.in_colour(found, len(names))),
        sheet.Cell(f"{right:.1%} right", shades),
      ]
  legend = label_maps.legend(np.concatenate([x.ravel() for x in truth]), names)
  legend += [("right", SHADES[RIGHT]), ("wrong", SHADES[WRONG])]
  return sheet.draw(cells, 2 + 2 * len(predicted), legend=legend, side=2.4)


def main(argv: Sequence[str] | None = None):
  args = command.parser(__doc__).parse_args(argv)

  def drawn(titles):
    found = [predict(path, args.images, args.evaluator) for path in args.runs]
    return draw(titles, found[0][0], [maps for _, maps in found])

  command.main(args, command.PREDICTIONS, drawn)


if __name__ == "__main__":
  main()
