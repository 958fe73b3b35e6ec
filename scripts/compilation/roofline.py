"""The least time that a compiled program can take, from data sheets.

These are estimates: no program reaches a chip's peaks, and each bound assumes
that everything else overlaps with it.
"""

from collections.abc import Mapping

from dpn.scripts.compilation import hlo, targets


def estimate(
  text: str, model_flops: int, chip: targets.Chip, devices: int
) -> dict:
  """Returns what a compiled program does on a device, and its bounds, as JSON.

  Args:
    text: of the program.
    model_flops: what the model needs on all devices, see `dpn.flops`.
    chip: its peaks.
    devices: how many there are.
  """
  program = hlo.Program(text)
  own, traffic = program.flops(), program.collectives()
  hbm = sum(moved for _, moved in program.hbm())
  needed = model_flops / devices
  # A program's text does not show the matrix products of every library.
  flops = max(own.total(), needed)
  sent = sum(t.sent for t in traffic.values())
  least = {
    "compute": flops / chip.flops,
    "memory": hbm / chip.hbm,
    "interconnect": sent / chip.link if sent else 0.0,
  }
  secs = max(least.values())
  return {
    "flops": {"model": needed, "program": own.total(), **own},
    "hbm_bytes": hbm,
    "collectives": {kind: [t.count, t.size] for kind, t in traffic.items()},
    "seconds_at_least": least,
    "bound": max(least, key=least.__getitem__),
    "mfu_at_most": needed / chip.flops / secs,
  }


def describe(found: Mapping) -> str:
  """Returns the result of `estimate` as text for a person."""
  gib, flops = 2**30, found["flops"]
  kinds = {k: v for k, v in flops.items() if k not in ("model", "program")}
  shares = ", ".join(
    f"{v / flops['program']:.1%} in {k}" for k, v in kinds.items() if v
  )
  lines = [
    f"FLOPs                   {flops['program'] / 1e12:10.3f} T per device, "
    f"{flops['model'] / 1e12:.3f} of them the model's ({shares})",
    f"HBM read and written    {found['hbm_bytes'] / gib:10.3f} GiB per device",
  ]
  for kind, (count, size) in found["collectives"].items():
    lines.append(f"{kind:<24}{size / gib:10.3f} GiB per device, {count} times")
  for name, secs in found["seconds_at_least"].items():
    lines.append(f"{name:<24}{secs * 1e3:10.2f} ms at least")
  lines.append(
    f"Estimate, from data sheets: bound by {found['bound']}, an MFU of "
    f"{found['mfu_at_most']:.0%} at most."
  )
  return "\n".join(lines)
