"""Made-up run folders for tests, and their pages read back."""

import html.parser
import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import safetensors.numpy

from dpn.scripts.compilation import gpus

gpus.find_compiler()  # before any test compiles: XLA reads its flags once


def write_run(
  folder: pathlib.Path,
  *,
  stem_ln: str = "none",
  seed: int = 0,
  config: Mapping[str, Any] | None = None,
  table: Mapping[str, Any] | None = None,
  rows: Sequence[Mapping[str, float]] = (),
  results: Mapping[str, float] | None = None,
  seconds: float | None = None,
  params: Mapping[str, np.ndarray] | None = None,
):
  """Writes a run folder; without `seconds` the run is incomplete.

  Args:
    folder: to be made.
    stem_ln: of the model.
    seed: of the run.
    config: further keys of the config; they override the others.
    table: its key of this name.
    rows: of metrics.jsonl; the last one is also in done.json.
    results: of a finished run of one step, instead of rows and seconds.
    seconds: how long the training took.
    params: trained parameters, by name.
  """
  if results is not None:
    rows, seconds = [{"step": 1, **results}], 1.0
  folder.mkdir(parents=True)
  model = {"stem_ln": stem_ln, "patch_size": [2, 3], "width": 8, "depth": 2}
  whole = {"seed": seed, "model": model, "input": {"batch_size": 4}}
  whole |= (config or {}) | ({"table": table} if table else {})
  (folder / "config.json").write_text(json.dumps(whole))
  (folder / "metrics.jsonl").write_text(
    "".join(json.dumps(row) + "\n" for row in rows)
  )
  if seconds is not None:
    last = {k: v for k, v in rows[-1].items() if k != "step"}
    done = {"step": rows[-1]["step"], "seconds": seconds, "metrics": last}
    (folder / "done.json").write_text(json.dumps(done))
    arrays = dict(params or {})
    safetensors.numpy.save_file(arrays, folder / "params.safetensors")


class Page(html.parser.HTMLParser):
  """The tags of an HTML page, with attributes, and its pieces of text."""

  def __init__(self, text: str):
    super().__init__()
    self.tags, self.text = [], []
    self.feed(text)

  def handle_starttag(self, tag, attrs):
    self.tags.append((tag, dict(attrs)))

  def handle_data(self, data):
    self.text.append(data)
