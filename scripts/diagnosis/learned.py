"""What the parameters of a checkpoint say, without any image.

Everything returned consists of numbers and lists, to be written as JSON.
"""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from dpn.scripts.diagnosis import measures
from dpn.scripts.results import measures as of_scales
from dpn.scripts.results import plots, render
from dpn.weights import vit_params

READING = """\
How to read it: norms start with scale 1 and bias 0. LN0's scale is one factor
for each pixel of a patch: corners and centre that differ say where the model
looks, colours that differ what it makes of them (arXiv 2302.01327, Figure 3).
A scale near 0 hides its pixel or channel. The spectrum is of the embedding's
kernel, LN0's scale included: directions of the patch that it passes on; with
few of them, tokens are alike."""
_NEAR_ZERO = 0.05
_ALIKE = 0.999  # cosine
# Parameters by name (the first match counts): what they are, whether weight
# decay is usual for them here and in big_vision (`wd_mults`), and in timm.
_DECAY = (
  (r".*/kernel", "kernels", True, True),
  (r"(.*/)?pos_embedding|cls|registers", "tokens and positions", False, False),
  (r"MAPHead_0/probe", "probe of the attention pooling", False, True),
  (r".*/scale", "scales of norms", False, False),
  (r".*/bias", "biases", False, False),
  (r".*", "others", False, False),
)


def learned(model: vit_params.VitParams) -> dict[str, Any]:
  """Returns what the norms and the embedding of a model have learned.

  Args:
    model: any Vision Transformer with a patch embedding.

  Raises:
    ValueError: its stem is convolutional.
  """
  arrays = {k: np.asarray(x, np.float64) for k, x in model.arrays.items()}
  if "embedding/kernel" not in arrays:
    raise ValueError(
      "The model has no patch embedding: its stem is not `patch`."
    )
  kernel = arrays["embedding/kernel"]
  kernel = kernel.reshape(-1, kernel.shape[-1])  # (pixels, width)
  found: dict[str, Any] = {"patch": list(model.patch)}
  found["options"] = dict(model.options)
  parts = {"embedding": kernel}
  if (scale := arrays.get("stem/ln0/scale")) is not None:
    found["ln0"] = scale.reshape(model.patch).tolist()
    parts["embedding with LN0's scale"] = scale[:, None] * kernel
  found["embedding"] = {k: measures.spectrum(x @ x.T) for k, x in parts.items()}
  found["norms"] = {
    name.removesuffix("/scale"): _norm(x, arrays.get(name[:-5] + "bias"))
    for name, x in sorted(arrays.items(), key=lambda x: by_number(x[0]))
    if name.endswith("/scale")
  }
  return found


def _norm(scale, bias):
  """Returns quantiles of a norm's scale, and the size of its bias."""
  row = {
    "scale": np.percentile(scale, measures.QUANTILES).tolist(),
    "near_zero": float((np.abs(scale) < _NEAR_ZERO).mean()),
  }
  return row if bias is None else {**row, "bias": float(np.abs(bias).mean())}


def decay_groups(arrays: Mapping[str, np.ndarray]) -> pd.DataFrame:
  """Returns which parameters usual recipes decay, a row for each kind.

  Args:
    arrays: by our names, without running statistics.
  """
  rows: dict[str, dict[str, Any]] = {}
  yes = {True: "decays", False: "-"}
  for name, x in arrays.items():
    kind = next(k for k in _DECAY if re.fullmatch(k[0], name))
    new = {"arrays": 0, "numbers": 0, "big_vision": yes[kind[2]]}
    row = rows.setdefault(kind[1], {**new, "timm": yes[kind[3]]})
    row["arrays"] += 1
    row["numbers"] += x.size
  order = [title for _, title, *_ in _DECAY if title in rows]
  return pd.DataFrame.from_dict(rows, orient="index").loc[order]


def findings(model: vit_params.VitParams) -> list[str]:
  """Returns what looks wrong in a model's parameters, a sentence each."""
  arrays = {k: np.asarray(x, np.float64) for k, x in model.arrays.items()}
  found = []
  for name in sorted(arrays, key=by_number):
    x = arrays[name]
    leaf = name.rpartition("/")[2]
    hidden = (np.abs(x) < _NEAR_ZERO).mean()
    if leaf == "scale" and hidden > 0.5:
      found.append(f"{name}: {hidden:.0%} of the scales are near 0: collapsed.")
    if leaf in ("registers", "pos_embedding", "cls"):
      rows = x.reshape(-1, x.shape[-1])
      norms = np.linalg.norm(rows, axis=-1)
      if dead := int((norms <= 0.01 * np.median(norms)).sum()):
        found.append(f"{name}: {dead} of {len(rows)} rows are near 0: unused.")
      unit = rows / np.maximum(norms, 1e-12)[:, None]
      alike = np.triu(unit @ unit.T, 1) > _ALIKE
      if leaf != "cls" and alike.any():
        found.append(f"{name}: {int(alike.sum())} pairs of rows are alike.")
    if leaf == "kernel":
      heads = re.search(r"/(query|key|value)(_prefix)?/", name)
      outputs = x[0].size if heads else x.shape[-1]  # of (width, heads, d)
      units = np.abs(x.reshape(-1, outputs)).max(axis=0)
      if dead := int((units < 1e-6).sum()):
        found.append(
          f"{name}: {dead} of {len(units)} outputs do not depend on the input."
        )
  return found or ["Nothing: no norm collapsed, no row or output is dead."]


def by_number(name: str) -> list[str]:
  """Returns a key that sorts block 10 after block 9."""
  return [part.zfill(9) for part in re.split(r"(\d+)", name)]


def tables(found: Mapping[str, Any]) -> list[pd.DataFrame]:
  """Returns the scales of all norms, LN0's by region, and the spectra."""
  norms = {}
  for name, part in found["norms"].items():
    low, _, middle, _, high = part["scale"]
    norms[name] = {
      "scale (5–95%)": f"{middle:.2f} ({low:.2f}–{high:.2f})",
      "near 0": f"{part['near_zero']:.0%}",
      "mean |bias|": f"{part['bias']:.2f}" if "bias" in part else "",
    }
  result = [pd.DataFrame.from_dict(norms, orient="index")]
  if "ln0" in found:
    by_region = of_scales.regions(np.array(found["ln0"]))
    if len(by_region) == 3:
      by_region.index = ["red", "green", "blue"]
    result.append(by_region.map("{:.3f}".format))
  return [*result, measures.spectra(found["embedding"])]


def text(path: str, found: Mapping[str, Any]) -> str:
  """Returns a sentence on what was looked at."""
  rows, cols, channels = found["patch"]
  return (
    f"{path}: patches of {rows}×{cols} pixels ({rows * cols * channels} "
    f"numbers), stem_ln={found['options']['stem_ln']}, width "
    f"{found['options']['width']}."
  )


def picture(found: Mapping[str, Any]) -> render.Picture | None:
  """Returns LN0's scale as a picture, if there is an LN0."""
  if "ln0" not in found:
    return None
  maps = plots.scale_maps({"ln0": np.array(found["ln0"])})
  return render.Picture(maps, "LN0's scale, by pixel.")
