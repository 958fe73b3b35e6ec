"""Draws what queries retrieve: images for texts, texts for images.

  python -m scripts.show_retrieval runs/lit/none-s0 runs/lit/dpn-s0
  python -m scripts.show_retrieval runs/lit/dpn-s0 --texts "a dog" "two dogs"

For each query the five most similar, of each run, among the data of an
evaluator of type retrieval. Right is an image with this very caption, or a
caption of this image. The picture is written to the first run's folder, where
scripts.report finds it.
"""

import argparse
import os
from collections.abc import Sequence

import numpy as np

from dpn.evaluators import retrieval
from dpn.scripts import evaluate
from dpn.scripts.results import output, run_pictures
from dpn.scripts.show import retrieved

_FOUND = 5


def search(
  path: str,
  images: Sequence[int] | None = None,
  texts: Sequence[str] | None = None,
  name: str | None = None,
) -> tuple[list[retrieved.Search], list[retrieved.Search], str]:
  """Returns what texts find, what images find, and what was searched.

  Args:
    path: of the run.
    images: which of the evaluator's data to ask for; None for four.
    texts: any texts; None for four captions of the data.
    name: of the evaluator; the first of its type without it.

  Raises:
    ValueError, OSError: it is no run with such an evaluator, or has no such
      image or data.
  """
  _, evaluator, variables = evaluate.of_run(path, "retrieval", name)
  zimg, ztxt, owner = evaluator.embeddings(variables)
  rows = evaluator.captions.read(range(len(ztxt)))
  captions = [_string(row["text"]) for row in rows]
  images = _spread(len(zimg)) if images is None else images
  if wrong := [i for i in images if not 0 <= i < len(zimg)]:
    raise ValueError(
      f"There is no image {wrong[0]}: {evaluator.images.examples.source.name} "
      f"has {len(zimg)}, numbered from 0."
    )
  if texts is None:
    texts = [captions[i] for i in _spread(len(ztxt))]
  of_image = [[] for _ in zimg]
  for text, image in zip(captions, owner, strict=True):
    of_image[image].append(text)

  def image(i, right=False):
    shown = _shown(evaluator.images.examples[int(i)])
    return retrieved.Item(of_image[i][0], shown, right)

  def text(j, i):
    return retrieved.Item(captions[j], right=captions[j] in of_image[i])

  near = retrieval.nearest(
    evaluator.embed_texts(variables, texts), zimg, _FOUND
  )
  by_text = [
    (retrieved.Item(query), [image(i, query in of_image[i]) for i in row])
    for query, row in zip(texts, near, strict=True)
  ]
  near = retrieval.nearest(zimg[list(images)], ztxt, _FOUND)
  by_image = [
    (image(i), [text(j, i) for j in row])
    for i, row in zip(images, near, strict=True)
  ]
  return by_text, by_image, f"{len(zimg):,} images, {len(ztxt):,} texts"


def _spread(count):
  """Returns four places, evenly spaced."""
  return sorted({(2 * i + 1) * count // 8 for i in range(4)})


def _string(text):
  return text.decode() if isinstance(text, bytes) else str(text)


def _shown(example):
  """Returns an example's image as colours (rows, cols, 3) in [0, 1]."""
  image = np.float32(example["image"])
  if image.ndim != 3:
    raise ValueError(
      f"The data has embeddings {image.shape} for images, which cannot be "
      "drawn: give a run whose config reads the images themselves."
    )
  image = (image - image.min()) / max(np.ptp(image), 1e-9)
  colour = image.shape[-1] >= 3
  return image[..., :3] if colour else image[..., :1].repeat(3, -1)


def main(argv: Sequence[str] | None = None):
  parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
  parser.add_argument("runs", nargs="+", help="folders of runs")
  parser.add_argument("--images", nargs="+", type=int, help="which, from 0")
  parser.add_argument("--texts", nargs="+", help="any, in place of captions")
  parser.add_argument("--evaluator", help="the first of retrieval by default")
  parser.add_argument("-o", "--output", metavar="FILE")
  args = parser.parse_args(argv)
  titles = [os.path.basename(os.path.abspath(path)) for path in args.runs]
  file = args.output or os.path.join(args.runs[0], run_pictures.RETRIEVAL)
  with output.errors_in_a_line(), output.ensure_folder(os.path.dirname(file)):
    by_text, by_image, searched = zip(
      *(search(x, args.images, args.texts, args.evaluator) for x in args.runs),
      strict=True,
    )
    if len({*searched}) > 1:
      raise ValueError(
        f"The runs search different data: {', '.join(searched)}."
      )
    sections = {
      f"The most similar images of a text ({searched[0]})": by_text,
      "The most similar texts of an image": by_image,
    }
    retrieved.draw(titles, sections).savefig(file)
    output.say(f"Wrote {file}.")


if __name__ == "__main__":
  main()
