"""Shows a diagnosis as a page."""

from collections.abc import Iterator, Sequence

import matplotlib
import numpy as np
import pandas as pd
from matplotlib import figure

from dpn.scripts.results import plots, render

CAPTION = """\
Eigenvalues of the second moments of patches, as shares of their sum: directions
with little energy are learned slowly, so a steep fall means a badly conditioned
embedding. Shares of the patch embedding in the norm of the gradient and of the
update: where that of the gradient is close to 1, the embedding decides how much
clipping by the global norm scales everything down. Entropy of the attention, as
a share of that of uniform attention, and its largest logit, by block. Relative
change of tokens and of the representation before the head when images x become
contrast · x + brightness: a LayerNorm of patches makes it 0."""


def page(
  title: str,
  words: Sequence[str],
  tables: Sequence[pd.DataFrame],
  picture: render.Picture | None = None,
) -> str:
  """Returns an HTML page of paragraphs, tables and, if given, a picture."""
  shown = [
    render.html_table(table.rename_axis("").reset_index()) for table in tables
  ]
  pictures = [render.pictures([picture])] if picture else []
  return render.page(title, *map(render.paragraph, words), *shown, *pictures)


@matplotlib.rc_context(plots.STYLE)
def picture(found: dict) -> render.Picture:
  """Returns all curves of a diagnosis, with a caption."""
  panels = [*_panels(found)]
  fig = figure.Figure((11.5, 6.4), layout="constrained")
  axes = fig.subplots(2, -(-len(panels) // 2)).ravel()
  for ax, (curves, labels) in zip(axes, panels, strict=False):
    for (name, (x, y)), style in zip(
      curves.items(), plots.STYLES, strict=False
    ):
      few = {} if len(x) < 20 else {"marker": ""}
      ax.plot(x, y, label=name, **(style | few))
    ax.set(**labels)
    ax.legend()
  for ax in axes[len(panels) :]:
    ax.set_axis_off()
  return render.Picture(fig, CAPTION)


def _panels(found) -> Iterator[tuple[dict, dict]]:
  """Yields curves {name: (x, y)}, and labels and limits of their axes."""
  curves = {}
  for name, part in found["patches"].items():
    y = np.array(part["spectrum"])
    curves[name] = np.arange(1, len(y) + 1), np.where(y > 1e-8, y, np.nan)
  logs = {"xscale": "log", "yscale": "log"}
  yield curves, {"xlabel": "direction", "ylabel": "share of energy", **logs}
  shares = {"short training": found["short_training"]}
  if found.get("logged", {}).get("step"):
    shares["the whole run"] = found["logged"]
  for title, part in shares.items():
    curves = {
      k: (part.get("step", range(1, len(part[k]) + 1)), part[k])
      for k in ("gradient", "update")
      if k in part
    }
    labels = {"xlabel": f"step of {title}", "ylabel": "embedding's share"}
    yield curves, {**labels, "ylim": (0, 1)}
  for key, label, high in (
    ("attention_entropy", "entropy / uniform", 1.02),
    ("largest_logit", "largest logit", None),
  ):
    curves = {
      stage: (range(1, len(part[key]) + 1), part[key])
      for stage, part in found["signals"].items()
    }
    yield curves, {"xlabel": "block", "ylabel": label, "ylim": (0, high)}
  changes = pd.DataFrame(found["invariance"]["changes"])
  changes.loc[len(changes)] = dict.fromkeys(changes, 0.0) | {"contrast": 1.0}
  for kind, rows in (
    ("brightness", changes[changes.contrast == 1].sort_values("brightness")),
    ("contrast", changes[changes.brightness == 0].sort_values("contrast")),
  ):
    curves = {k: (rows[kind], rows[k]) for k in ("tokens", "representation")}
    label = f"change ({found['invariance']['of']})"
    yield curves, {"xlabel": kind, "ylabel": label, "ylim": (0, None)}
