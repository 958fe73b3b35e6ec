"""Draws what queries retrieve: images for texts, texts for images.

  python -m scripts.show_retrieval runs/lit/none-s0 runs/lit/dpn-s0
  python -m scripts.show_retrieval runs/lit/dpn-s0 --texts "a dog" "two dogs"

For each query and each run, it draws the five most similar items, best first,
from the data of an evaluator of type retrieval. Right ones are green: images
with this very caption, or captions of this image. The picture is written to the
first run's folder, where scripts.report finds it.
"""

from collections.abc import Sequence

from matplotlib import figure

from dpn.evaluators import retrieval
from dpn.scripts.evaluation import checkpoints
from dpn.scripts.show import command, sheet

Search = tuple[sheet.Cell, list[sheet.Cell]]  # a query, and what it found
_FOUND = 5
_RIGHT, _WRONG = "#1a7f37", "0.4"


def search(
  path: str,
  images: Sequence[int] | None = None,
  texts: Sequence[str] | None = None,
  name: str | None = None,
) -> tuple[list[Search], list[Search], str]:
  """Returns what texts find, what images find, and what was searched.

  Args:
    path: the run's folder.
    images: which of the evaluator's images are queries; None for four.
    texts: queries, any texts; None for four captions of the data.
    name: the evaluator's; by default config.table.metric's, else the first.

  Raises:
    ValueError, OSError: it is not a run with such an evaluator, or has no such
      image or data.
  """
  _, evaluator, variables = checkpoints.of_run(path, "retrieval", name)
  zimg, ztxt, owner = evaluator.embeddings(variables)
  rows = evaluator.captions.read(range(len(ztxt)))
  captions = [_string(row["text"]) for row in rows]
  images = command.spread(len(zimg)) if images is None else images
  if wrong := [i for i in images if not 0 <= i < len(zimg)]:
    raise ValueError(
      f"There is no image {wrong[0]}: {evaluator.images.examples.source.name} "
      f"has {len(zimg)}, numbered from 0."
    )
  if texts is None:
    texts = [captions[i] for i in command.spread(len(ztxt))]
  of_image = [[] for _ in zimg]
  for text, image in zip(captions, owner, strict=True):
    of_image[image].append(text)

  def image(i, colour=None):
    shown = _shown(evaluator.images.examples[int(i)])
    return sheet.Cell(of_image[i][0], shown, colour)

  colour = lambda text, i: _RIGHT if text in of_image[i] else _WRONG
  queries = evaluator.embed_texts(variables, texts)
  near = retrieval.nearest(queries, zimg, _FOUND)
  by_text = [
    (sheet.Cell(query), [image(i, colour(query, i)) for i in row])
    for query, row in zip(texts, near, strict=True)
  ]
  near = retrieval.nearest(zimg[list(images)], ztxt, _FOUND)
  text = lambda j, i: sheet.Cell(captions[j], None, colour(captions[j], i))
  by_image = [
    (image(i), [text(j, i) for j in row])
    for i, row in zip(images, near, strict=True)
  ]
  return by_text, by_image, f"{len(zimg):,} images, {len(ztxt):,} texts"


def _string(text):
  return text.decode() if isinstance(text, bytes) else str(text)


def _shown(example):
  """Returns an example's image in [0, 1]."""
  image = sheet.stretched(example["image"])
  if image.ndim != 3:
    raise ValueError(
      f"The data has embeddings {image.shape} for images, which cannot be "
      "drawn: give a run whose config reads the images themselves."
    )
  return image


def draw(
  titles: Sequence[str], found: Sequence[tuple[list[Search], list[Search], str]]
) -> figure.Figure:
  """Returns a row for each query and each run.

  Args:
    titles: of the runs.
    found: by run, from `search`.
  """
  *sections, searched = zip(*found, strict=True)
  if len({*searched}) > 1:
    raise ValueError(f"The runs search different data: {', '.join(searched)}.")
  names = [f"{title}: " if len(titles) > 1 else "" for title in titles]
  what = (
    f"The most similar images of a text ({searched[0]})",
    "The most similar texts of an image",
  )
  cells, headings = [], {}
  for heading, runs in zip(what, sections, strict=True):
    headings[len(cells) // (1 + _FOUND)] = heading
    for searches in zip(*runs, strict=True):
      for name, (query, items) in zip(names, searches, strict=True):
        query = sheet.Cell(name + query.text, query.image)
        rest = [sheet.Cell("")] * (_FOUND - len(items))
        cells += [query, *items, *rest]
  return sheet.draw(cells, 1 + _FOUND, headings=headings)


def main(argv: Sequence[str] | None = None):
  parser = command.parser(__doc__)
  parser.add_argument("--texts", nargs="+", help="texts to look for")
  args = parser.parse_args(argv)
  find = lambda path: search(path, args.images, args.texts, args.evaluator)
  drawn = lambda titles: draw(titles, [*map(find, args.runs)])
  command.main(args, command.RETRIEVAL, drawn)


if __name__ == "__main__":
  main()
