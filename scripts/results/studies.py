"""Gains of Dual PatchNorm in our studies, against what diagnose measures.

studies.json has a row for each setting: the title of its runs, a plain name,
the archive in docs/results, and how many runs of each arm are planned. Nothing
of the setting is shown until all of them are there. `rank` is the effective
rank of its patches, raw and after a LayerNorm, as scripts.diagnose measures it
with `config`; settings without a rank are in no figure.
"""

import dataclasses
import functools
import json
import pathlib
from collections.abc import Mapping

import matplotlib
import pandas as pd
from matplotlib import figure

from dpn.scripts.results import aggregate, plots, run_files, runs

_RESULTS = pathlib.Path(__file__).resolve().parents[2] / "docs" / "results"
STATS = "dpn+patch_stats"
_SHOWN = {
  runs.DPN: "Dual PatchNorm",
  STATS: "Dual PatchNorm + patch_stats",
  "none_standardized": "plain ViT, standardized pixels",
}


@dataclasses.dataclass(frozen=True)
class Study:
  """A row of studies.json; `runs` is by arm."""

  name: str
  title: str
  archive: str
  runs: Mapping[str, int]
  config: str = ""
  rank: tuple[float, float] | None = None

  @property
  def ratio(self) -> float:
    """By what factor a LayerNorm raises the effective rank of patches."""
    return self.rank[1] / self.rank[0]


@functools.cache
def known() -> dict[str, Study]:
  """Returns all rows by title."""
  file = pathlib.Path(__file__).with_name("studies.json")
  rows = json.loads(file.read_text("utf-8"))
  return {row["title"]: Study(**row) for row in rows}


def heading(title: str, level: aggregate.Estimate | str) -> str:
  """Returns a setting's plain name with the plain ViT's level.

  The title itself if it is not of a study.
  """
  if title not in known() or isinstance(level, str):
    return title
  return f"{known()[title].name} (plain:\N{NO-BREAK SPACE}{level.mean:.1f})"


def gains(study: Study, frame: pd.DataFrame) -> dict[str, aggregate.Estimate]:
  """Returns the level of the plain ViT, and each arm's difference from it.

  {} as long as a planned run is missing.

  Args:
    study: of which setting.
    frame: of `runs.frame`.
  """
  of = frame[(frame.title == study.title) & frame.complete & ~frame.trial]
  arms = {}
  for arm, planned in study.runs.items():
    rows = of[of.arm == arm]
    if rows.seed.nunique() < planned:
      return {}
    arms[arm] = aggregate.arm(rows, rows.run.iloc[0].headline[:1])
  base = arms.pop(runs.BASE)
  found = {arm: aggregate.gain(its, base) for arm, its in arms.items()}
  return {runs.BASE: aggregate.cell(base), **found}


def measured(frame: pd.DataFrame) -> list[tuple[Study, dict]]:
  """Returns finished settings that have a rank, with `gains`, by ratio."""
  ranked = sorted(
    (study for study in known().values() if study.rank),
    key=lambda study: study.ratio,
  )
  found = [(study, gains(study, frame)) for study in ranked]
  return [(study, numbers) for study, numbers in found if numbers]


def published() -> pd.DataFrame:
  """Returns the archived runs, which a checkout has; none without one."""
  names = {s.archive for s in known().values() if s.rank}
  files = [str(_RESULTS / name) for name in sorted(names)]
  files = [file for file in files if pathlib.Path(file).exists()]
  return runs.frame(run_files.find(files))


@matplotlib.rc_context(plots.STYLE)
def draw(frame: pd.DataFrame) -> figure.Figure:
  """Returns gains with their intervals: a row for each setting, by ratio.

  Raises:
    ValueError: no finished setting is among the runs.
  """
  found = measured(frame)
  if not found:
    names = ", ".join(s.name for s in known().values() if s.rank)
    raise ValueError(f"No run is of a finished study: {names}.")
  fig = figure.Figure((7.4, 1.2 + 0.36 * len(found)), layout="constrained")
  ax = fig.subplots()
  for i, (arm, label) in enumerate(_SHOWN.items()):
    rows = [(y, g[arm]) for y, (_, g) in enumerate(found) if arm in g]
    ax.errorbar(
      [gain.mean for _, gain in rows], [y + 0.2 * i - 0.1 for y, _ in rows],
      xerr=[gain.ci for _, gain in rows],
      fmt="osD"[i], color=plots.COLOURS[1 - i], markersize=5, label=label,
    )  # fmt: skip
  ax.axvline(0, color="#333333", linewidth=0.8)
  names = [f"{s.name}: ×{s.ratio:.1f}" for s, _ in found]
  ax.set_yticks(range(len(found)), names)
  counts = [", ".join(str(x.n) for x in g.values()) for _, g in found]
  right = ax.secondary_yaxis("right")
  right.set_yticks(range(len(found)), counts)
  right.set_ylabel("runs of plain ViT, and of each in the legend's order")
  plain = "a plain ViT with pixels from −1 to 1"
  ax.set_xlabel(f"difference from {plain} [points], 95% intervals")
  ax.set_title("×: how much a LayerNorm raises the effective rank of patches")
  fig.legend(loc="outside upper center", ncols=len(_SHOWN))
  return fig


def beside(ratio: float) -> str:
  """Returns where data with this ratio lie among the published studies."""
  found = measured(published())
  rows = [f"×{s.ratio:.1f} {s.name}: {_number(g[runs.DPN])}" for s, g in found]
  words = (
    f"A LayerNorm raises the effective rank of these patches ×{ratio:.1f}."
  )
  if not rows:
    return words
  return (
    f"{words} Studies by that number, and what Dual PatchNorm gained there, in "
    f"points with 95% intervals: {'; '.join(rows)}. They differ in more than "
    "it, so no gain can be read off."
  )


def _number(gain):
  return f"{gain.mean:+.1f} ± {gain.ci:.1f}"
