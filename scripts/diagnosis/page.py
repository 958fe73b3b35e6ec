"""Shows a diagnosis as a page with figures."""

from collections.abc import Sequence

import matplotlib
import numpy as np
from matplotlib import figure, ticker

from dpn.scripts.results import plots, render

CAPTIONS = {
  "spectrum": "Eigenvalues of the second moments of patches, as shares of "
  "their sum. Directions with little energy are learned slowly, so a steep "
  "fall means a badly conditioned embedding. Standardizing channels changes "
  "little, since all pixels of a patch share its brightness.",
  "shares": "The patch embedding's share of the norm of the whole gradient "
  "and update, in a short training with a warmup of its own. Where that of the "
  "gradient is close to 1, the embedding decides how far clipping by the "
  "global norm shortens everything.",
  "signals": "Left: norms of the tokens that leave the stem (median, "
  "quartiles, 5–95%), and as diamonds the median norm of the position "
  "embeddings added to them. Middle and right, by block: entropy of the "
  "attention, as a share of that of uniform attention, and its largest logit.",
  "invariance": "How far images x that become contrast · x + brightness reach: "
  "the change of the tokens, and of the representation before the head, "
  "relative to their norm. A LayerNorm of patches makes it 0.",
}


def page(found: dict, words: Sequence[str]) -> str:
  """Returns the HTML page of a diagnosis, which paragraphs of words sum up."""
  patches = found["patches"]
  rank = {k: f"{v['effective_rank']:.1f}" for k, v in patches.items()}
  top = {k: f"{v['top_share']:.0%}" for k, v in patches.items()}
  rows, cols = found["patch_size"]
  intro = (
    f"{found['data']}, {found['examples']} images, patches of {rows}×{cols} "
    f"pixels; `stem_ln={found['stem_ln']}`, batches of {found['batch_size']}. "
    f"Patches have {len(patches['raw']['spectrum'])} numbers; their effective "
    f"rank is {rank['raw']}, and {rank['LayerNorm']} after a LayerNorm. Their "
    f"largest direction holds {top['raw']} of their energy, and "
    f"{top['LayerNorm']} after it."
  )
  drawn = {
    "spectrum": spectrum(patches),
    "shares": shares(found),
    "signals": signals(found["signals"]),
    "invariance": invariance(found["invariance"]),
  }
  return render.page(
    f"Diagnosis: {found['data']}",
    render.paragraph(intro),
    *map(render.paragraph, words),
    render.pictures(
      [render.Picture(fig, CAPTIONS[name]) for name, fig in drawn.items()]
    ),
  )


def _axes(count):
  width = plots.WIDTH_INCHES * max(1, count / 1.6)
  fig = figure.Figure((width, 3.0), layout="constrained")
  return fig, fig.subplots(1, count, squeeze=False)[0]


@matplotlib.rc_context(plots.STYLE)
def spectrum(patches: dict) -> figure.Figure:
  """Returns the eigenvalues against their number, on logarithmic axes."""
  fig, [ax] = _axes(1)
  for (name, part), style in zip(patches.items(), plots.STYLES, strict=False):
    values = np.array(part["spectrum"])
    values = np.where(values > 1e-8, values, np.nan)
    style = {k: v for k, v in style.items() if k != "marker"}
    ax.loglog(np.arange(1, len(values) + 1), values, label=name, **style)
  ax.set(xlabel="direction", ylabel="share of the energy")
  ax.legend()
  return fig


@matplotlib.rc_context(plots.STYLE)
def shares(found: dict) -> figure.Figure:
  """Returns the embedding's shares by step: in short training, and logged."""
  panels = {"short training": found["short_training"]}
  if found.get("logged", {}).get("step"):
    panels["the whole run"] = found["logged"]
  fig, axes = _axes(len(panels))
  for ax, (title, part) in zip(axes, panels.items(), strict=True):
    for name, style in zip(("gradient", "update"), plots.STYLES, strict=False):
      if name in part:
        values = np.where(np.array(part[name]) > 0, part[name], np.nan)
        style = {k: v for k, v in style.items() if k != "marker"}
        steps = part.get("step", range(len(values)))
        ax.plot(steps, values, label=name, **style)
    ax.set(xlabel="training step", ylim=(0, 1), title=title)
  axes[0].set_ylabel("embedding's share of the norm")
  axes[0].legend()
  return fig


@matplotlib.rc_context(plots.STYLE)
def signals(stages: dict) -> figure.Figure:
  """Returns norms of tokens and positions, and the attention by block."""
  fig, (ax, entropy, largest) = _axes(3)
  stats = []
  for name, part in stages.items():
    low, q1, middle, q3, high = part["token_norms"]
    ends = {"whislo": low, "whishi": high}
    stats.append({"label": name, "q1": q1, "med": middle, "q3": q3, **ends})
  ax.bxp(stats, showfliers=False)
  for place, part in enumerate(stages.values(), 1):
    if "position_norms" in part:
      ax.plot(place, part["position_norms"][2], "D", color=plots.COLOURS[1])
  ax.set_ylabel("norm")
  for (name, part), style in zip(stages.items(), plots.STYLES, strict=False):
    blocks = range(1, len(part["largest_logit"]) + 1)
    entropy.plot(blocks, part["attention_entropy"], label=name, **style)
    largest.plot(blocks, part["largest_logit"], label=name, **style)
  for ax in (entropy, largest):
    ax.xaxis.set_major_locator(ticker.MaxNLocator(integer=True))
  entropy.set(xlabel="block", ylabel="entropy / uniform", ylim=(0, 1.02))
  largest.set(xlabel="block", ylabel="largest logit", ylim=(0, None))
  entropy.legend()
  return fig


@matplotlib.rc_context(plots.STYLE)
def invariance(found: dict) -> figure.Figure:
  """Returns changes of tokens and representation under changed images."""
  fig, axes = _axes(2)
  same = {"contrast": 1.0, "brightness": 0.0, "tokens": 0, "representation": 0}
  for ax, kind in zip(axes, ("brightness", "contrast"), strict=True):
    other = next(k for k in ("brightness", "contrast") if k != kind)
    rows = [r for r in found["changes"] if r[other] == same[other]] + [same]
    rows = sorted(rows, key=lambda row: row[kind])
    for name, style in zip(
      ("tokens", "representation"), plots.STYLES, strict=False
    ):
      x, y = ([row[key] for row in rows] for key in (kind, name))
      ax.plot(x, y, label=name, **style)
    ax.set(xlabel=kind, ylim=(0, None))
  axes[0].set_ylabel(f"relative change ({found['of']})")
  axes[0].legend()
  return fig
