"""Encoded images that a table, the manifest, lists.

It is an uncompressed CSV file with a header, or a JSONL file with an object per
line. Its columns are `path`, `split`, and any of `label`, `mask` and `caption`.
Paths (of images, and in `mask` of label maps) are relative to the manifest's
folder and stay in it; labels are numbers from 0, or names; a caption becomes
the example's `text`, and in JSONL may be a list. Rows of splits that are not
read may lack all three. Other columns, and spaces around a field, are ignored.
"""

import os
from collections.abc import Sequence
from typing import Any, BinaryIO

import numpy as np

from dpn import damage, paths, schema
from dpn.input_pipeline import sources
from dpn.input_pipeline.sources import files as files_lib


def manifest(path: str, split: str) -> files_lib.FileSource:
  """Opens the images listed in a table; the `id` is the path."""
  path = os.path.expanduser(path)
  # Open the file here, so that pandas does not decompress it by its name.
  with damage.reading(path), paths.open_regular(path) as file:
    table = _table(path, file, split)
    sources.check_split(path, split, {*table["split"]})
    chosen = (table["split"] == split).to_numpy()
    labels = _manifest_labels(table.get("label"), chosen, path)
  columns = {key: column[chosen].tolist() for key, column in table.items()}
  files = {"image": columns["path"]}
  if "mask" in table:
    files["mask"] = columns["mask"]
  for names in files.values():
    _check_below(path, names)
  return files_lib.FileSource(
    name=f"manifest:{path}:{split}",
    root=os.path.dirname(path),
    ids=columns["path"],
    files=files,
    captions=columns.get("caption"),
    **labels,
  )


def _check_below(path: str, names: Sequence[str]):
  """Raises ValueError unless a manifest names files below its own folder.

  A manifest from elsewhere could name any file on this machine, which would
  then end up in a batch that is shown or in a data set that is prepared.
  """
  folder = os.path.abspath(os.path.dirname(path))
  for name in names:
    full = os.path.normpath(os.path.join(folder, name))
    if not full.startswith(os.path.join(folder, "")):
      raise ValueError(
        f"{path} names {name!r}, which is not below {folder}. Move the table "
        "to a folder that all its images are below."
      )


def _table(path: str, file: BinaryIO, split: str):
  """Returns a manifest's columns as text; a caption may be a list of texts."""
  import pandas as pd  # takes half a second

  try:
    if path.endswith(".jsonl"):
      table = pd.read_json(file, lines=True, dtype=False, encoding="utf-8-sig")
    else:
      kw = {"dtype": str, "keep_default_na": False, "skipinitialspace": True}
      # As a header, pandas would rename what is in it twice.
      table = pd.read_csv(file, header=None, **kw)
      header, table = table.iloc[0], table[1:].reset_index(drop=True)
      table.columns = header.to_list()
    table.columns = table.columns.map(str).str.strip()
    if table.columns.has_duplicates:
      raise ValueError(f"two columns have one name: {[*table.columns]}")
    targets = sorted({"label", "mask", "caption"} & {*table}) or ["label"]
    strip = lambda x: x.strip() if isinstance(x, str) else x
    table = table[["path", "split", *targets]].map(strip)
  except (ValueError, AttributeError, KeyError) as error:
    raise ValueError(
      f"Cannot read {path}: {str(error).strip()}. Expected a .csv file with a "
      "header or a .jsonl file of objects, with the columns path, split, and "
      "label, mask or caption; a field with a comma in it needs double quotes."
    ) from error
  missing = table.isna() | table.map(lambda x: x in ("", []))
  if missing.any(axis=None):
    # Integers became floats where one is missing: back to integers.
    table = table.convert_dtypes().astype(object).mask(missing, "")
    missing.loc[table["split"].astype(str) != split, targets] = False
  if missing.any(axis=None):
    row, column = np.argwhere(missing.to_numpy())[0]
    raise ValueError(f"{path}: row {row + 1} has no {table.columns[column]}.")
  mixed = table.loc[:, table.dtypes.eq(object)]
  for key, column in mixed.items():
    hint = str | list[str] if key == "caption" else str | int | float
    for row, value in enumerate(column, 1):
      if not isinstance(value, str):
        schema.check(path, f"row {row}: {key}", value, hint)
  return table.astype(dict.fromkeys({*table} - ({"caption"} & {*mixed}), str))


def _manifest_labels(labels, chosen: np.ndarray, path: str) -> dict[str, Any]:
  """Returns the chosen rows' labels as numbers; all rows' classes, or how many.

  Raises:
    ValueError: they are neither integers nor names.
  """
  if labels is None:
    return {}
  chosen, labels = chosen[labels != ""], labels[labels != ""]
  numeric = labels.str.isdecimal()
  if numeric.all():
    numbers = labels.astype(int).to_numpy()
    count = int(numbers.max()) + 1
    return {"labels": numbers[chosen], "classes": {"label": count}}
  if numeric.any() or labels.str.fullmatch(r"[+-]?\d*\.?\d+|\d+\.").all():
    raise ValueError(
      f"{path}: the label {labels[~numeric].iloc[0]!r} is not an integer from "
      "0, but labels look like numbers. Expected integers, or names, for all."
    )
  classes, numbers = np.unique(labels.tolist(), return_inverse=True)
  return {"labels": numbers[chosen], "classes": {"label": classes.tolist()}}
