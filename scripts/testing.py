"""Made-up run folders for tests."""

import json
import pathlib
from collections.abc import Mapping, Sequence

import numpy as np
import safetensors.numpy


def write_run(
  folder: pathlib.Path,
  *,
  stem_ln: str = "none",
  seed: int = 0,
  rows: Sequence[Mapping[str, float]] = (),
  seconds: float | None = None,
  params: Mapping[str, np.ndarray] | None = None,
):
  """Writes a run folder; without `seconds` it is that of an incomplete run."""
  folder.mkdir(parents=True)
  model = {"stem_ln": stem_ln, "patch_size": [2, 3], "width": 8, "depth": 2}
  config = {"seed": seed, "model": model, "input": {"batch_size": 4}}
  (folder / "config.json").write_text(json.dumps(config))
  (folder / "metrics.jsonl").write_text(
    "".join(json.dumps(row) + "\n" for row in rows)
  )
  if seconds is not None:
    last = {k: v for k, v in rows[-1].items() if k != "step"}
    done = {"step": rows[-1]["step"], "seconds": seconds, "metrics": last}
    (folder / "done.json").write_text(json.dumps(done))
    safetensors.numpy.save_file(
      dict(params or {}), folder / "params.safetensors"
    )
