"""Data whose images have been replaced by a locked tower's embeddings.

scripts.embed_images writes them: `<split>.npy`, (examples, width) float32, and
`source.json`, which names the original data. Everything but the image is still
read from those.
"""

import os

import numpy as np

from dpn import damage, paths, schema
from dpn.input_pipeline import sources

SOURCE = "source.json"


class EmbeddedSource(sources.Source):
  """The examples of another source, with an embedding (width,) as `image`."""

  def __init__(self, path: str, split: str):
    """Opens a split that was embedded.

    Raises:
      ValueError, OSError: it was not embedded, or the data have another number
        of examples since; no other change is noticed.
    """
    self._args = path, split
    root = os.path.expanduser(path)
    data = schema.read_json(os.path.join(root, SOURCE), sources.Data)
    known = [n[:-4] for n in os.listdir(root) if n.endswith(".npy")]
    sources.check_split(root, split, known)
    with damage.reading(os.path.join(root, SOURCE)):
      data["split"] = split
      self._source = sources.make(data, own_classes=False)
    self.name = f"embedded:{root}:{split}"
    self.classes = self._source.classes
    self.describe = self._source.describe
    self.may_be_sorted = self._source.may_be_sorted
    file = paths.check_regular(os.path.join(root, f"{split}.npy"))
    with damage.reading(file):
      self._embeddings = np.lib.format.open_memmap(file, mode="r")
      shape = self._embeddings.shape
    if shape[:1] != (len(self._source),):
      raise ValueError(
        f"{file} has embeddings of shape {shape}, {self._source.name} has "
        f"{len(self._source)} examples: embed it again."
      )

  def __reduce__(self):
    return EmbeddedSource, self._args

  def __len__(self):
    return len(self._source)

  def __getitem__(self, index):
    return self.read([index])[0]

  def read(self, indices):
    """Returns several examples at once, as the other source does."""
    return [
      {**example, "image": np.array(self._embeddings[i])}
      for i, example in zip(indices, self._source.read(indices), strict=True)
    ]
