"""How a step's bounds change with the number of devices: rows and a figure.

Weak scaling gives each device as many images as before; strong scaling splits
the same batch over more devices.
"""

import json
import os
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence

import matplotlib
import pandas as pd
from matplotlib import figure

from dpn import schedules
from dpn.scripts.compilation import fit, table
from dpn.scripts.results import output, plots

# Images/s that a core prepares, with RandAugment and without: see
# docs/input_performance.md.
_PER_CORE = {True: 745, False: 920}
_GROUP = 8  # devices that share parameters in two dimensions
WEAK, STRONG = "weak", "strong"
_WHOLE, _FSDP, _2D = "whole on each", "fsdp", f"fsdp of {_GROUP}"
_LAYOUTS = {
  _WHOLE: {},
  _FSDP: {"sharding_strategy": [(".*", 'fsdp(axis="data")')]},
  _2D: {
    "mesh": [("data", -1), ("fsdp", _GROUP)],
    "sharding_strategy": [(".*", 'fsdp(axis="fsdp")')],
  },
}
_STEPS = 10**6
_DPI = 150


def cases(
  batch_size: int, devices: Mapping[str, int]
) -> Iterator[tuple[str, str, str, Mapping]]:
  """Yields (target, scaling, layout, changes of the config).

  Args:
    batch_size: on the first target, where both scalings are the same.
    devices: how many there are, by target.

  Raises:
    ValueError: the first target's devices cannot share the batch.
  """
  [first, *_] = devices.values()
  if batch_size % first:
    raise ValueError(
      f"config.input.batch_size={batch_size} cannot be split over the "
      f"{first} devices of the first --target."
    )
  for target, count in devices.items():
    images = batch_size // first * count
    for layout, change in _LAYOUTS.items():
      if layout != _2D or (count % _GROUP == 0 and count > _GROUP):
        yield target, WEAK, layout, {"input.batch_size": images} | change
    if count != first:
      yield target, STRONG, _WHOLE, {}


def draw(
  path: str, config, devices: Mapping[str, int], compiled: Callable
) -> None:
  """Compiles all `cases`, prints a table, and draws it.

  Rows that are in the .jsonl file beside the figure are not compiled again, so
  this goes on where it stopped.

  Args:
    path: of the figure.
    config: has the step, and the batch size on the first target.
    devices: how many there are, by target.
    compiled: (config, target) → bounds and more, as JSON.
  """
  archive, rows = f"{os.path.splitext(path)[0]}.jsonl", []
  randaug = "randaug" in str(config.input)
  # With such large batches, a run may have fewer steps than its warmup.
  unset = {f"total_{unit}": None for unit in schedules.UNITS}
  config = fit.changed(config, unset | {"total_steps": _STEPS})
  for target, kind, layout, change in cases(config.input.batch_size, devices):
    own = fit.changed(config, change)
    text = json.dumps(own.to_dict(), sort_keys=True, default=str)
    key = {"target": target, "config": zlib.crc32(text.encode())}
    known = (r for r in table.read(archive) if key.items() <= r.items())
    if (row := next(known, None)) is None:
      row = key | {"scaling": kind, "layout": layout}
      row |= {"devices": devices[target], "images": own.input.batch_size}
      row |= compiled(own, target)
      per_host = row["images_per_sec_at_most"] / row["hosts"]
      row["cores_per_host"] = per_host / _PER_CORE[randaug]
      table.append(archive, row)
    rows.append(row)
  print(markdown(rows))
  output.save(plot(rows), path, dpi=_DPI)


def markdown(rows: Sequence[Mapping]) -> str:
  """Returns rows of `draw` as a table."""
  lines = [
    "| scaling | devices | images of each | parameters | compute | memory "
    "| links, ms | images/s at most | cores a host |",
    "|---|--:|--:|---|--:|--:|--:|--:|--:|",
  ]
  for row in rows:
    changed = f", `{fit.flags(row['fit'])}`" if row["fit"] else ""
    lines.append(
      f"| {row['scaling']}{changed} | `{row['target']}`, {row['devices']} "
      f"| {row['images'] / row['devices']:g} | {row['layout']} "
      f"| {' | '.join(table.bounds(row))} "
      f"| {row['images_per_sec_at_most']:,.0f} | {row['cores_per_host']:.1f} |"
    )
  return "\n".join(lines)


@matplotlib.rc_context(plots.STYLE)
def plot(rows: Sequence[Mapping]) -> figure.Figure:
  """Returns a figure of the bounds, and of the cores a host, by devices."""
  fig = figure.Figure(figsize=(9.6, 3.6), layout="constrained")
  weak, strong, cores = fig.subplots(1, 3)
  frame = pd.json_normalize([*rows])  # its first row is of both scalings
  links = plots.COLOURS[2]
  for ax, kind in ((weak, WEAK), (strong, STRONG)):
    of_kind = frame[(frame.scaling == kind) | (frame.index == 0)]
    by_devices = of_kind.set_index("devices").sort_index()
    layouts = dict([*by_devices.groupby("layout")])
    whole = layouts[_WHOLE]
    for bound, label, colour in (
      ("compute", "compute", plots.COLOURS[0]),
      ("memory", "memory", plots.COLOURS[1]),
      ("interconnect", "links", links),
    ):
      ms = 1e3 * whole[f"seconds_at_least.{bound}"]
      ax.plot(ms, label=label, color=colour, marker="o")
    for layout, style in ((_FSDP, "--"), (_2D, ":")):
      if layout in layouts:
        ms = 1e3 * layouts[layout]["seconds_at_least.interconnect"]
        own = {"color": links, "linestyle": style, "marker": "s"}
        ax.plot(ms, label=f"links, {layout}", **own)
    ax.set_yscale("log")
    images = frame.images[0] // (frame.devices[0] if kind == WEAK else 1)
    what = "images of each" if kind == WEAK else "images in all"
    ax.set(title=f"{kind} scaling: {images:,} {what}", ylabel="ms at least")
    colour = plots.COLOURS[3 if kind == WEAK else 4]
    cores.plot(whole.cores_per_host, label=kind, color=colour, marker="o")
  cores.set(title="input: cores a host at that bound", ylabel="cores")
  counts = sorted({*frame.devices})
  for ax in (weak, strong, cores):
    ax.set_xscale("log", base=2)
    ax.set_xticks(counts, map(str, counts))
    ax.set(xlabel="devices")
  fig.legend(
    *weak.get_legend_handles_labels(), loc="outside lower center", ncols=5
  )
  cores.legend()
  cores.set_ylim(bottom=0)
  return fig
