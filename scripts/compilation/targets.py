"""Devices that a program can be compiled for without having one."""

import dataclasses
import importlib.util
import os
import re
from collections.abc import Sequence

import jax
from jax.experimental import topologies

from dpn import errors, flops
from dpn.scripts.compilation import gpus


@dataclasses.dataclass(frozen=True)
class Chip:
  """What a chip's vendor says of it.

  Attributes:
    memory_gb: GiB of HBM; 0 where it is not known.
    flops: dense bfloat16 peak in FLOP/s.
    hbm: bytes/s.
    link: bytes/s to other chips, all links together, one way.
    largest: topology of a whole pod, beyond which libtpu ends the process.
    between_hosts: as `link`, if other hosts' chips have slower links.
  """

  memory_gb: float = 0.0
  flops: float = 0.0
  hbm: float = 0.0
  link: float = 0.0
  largest: tuple[int, ...] = ()
  between_hosts: float = 0.0

  @property
  def usable_gb(self) -> float:
    """GiB that JAX takes: three quarters of a GPU's, unless told otherwise."""
    names = ("XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION")
    share = next(filter(None, map(os.environ.get, names)), 0.75)
    return self.memory_gb * (1 if self.largest else float(share))


_PEAKS = flops.PEAKS
# From Google Cloud's pages on each and NVIDIA's data sheets (SXM, dense), which
# add up both ways of links. Between hosts of eight GPUs, 400 Gbit/s a GPU as in
# NVIDIA's DGX H100, 200 in its DGX A100. A GPU's memory is what drivers leave.
CHIPS = {
  "cpu": Chip(),
  "v4": Chip(32, _PEAKS["TPU v4"], 1228e9, 150e9, (16, 16, 16)),
  "v5e": Chip(16, _PEAKS["TPU v5 lite"], 819e9, 100e9, (16, 16)),
  "v5p": Chip(95, _PEAKS["TPU v5p"], 2765e9, 300e9, (16, 20, 28)),
  "v6e": Chip(32, _PEAKS["TPU v6 lite"], 1640e9, 224e9, (16, 16)),
  "a100": Chip(79, _PEAKS["NVIDIA A100"], 2039e9, 300e9, between_hosts=25e9),
  "h100": Chip(79, _PEAKS["NVIDIA H100"], 3350e9, 450e9, between_hosts=50e9),
  "h200": Chip(139, _PEAKS["NVIDIA H200"], 4800e9, 450e9, between_hosts=50e9),
}
_HERE = {  # by jax.Device.device_kind; other variants have slower memories
  "NVIDIA A100-SXM4-80GB": "a100",
  "NVIDIA H100 80GB HBM3": "h100",
  "NVIDIA H200": "h200",
  "TPU v4": "v4",
  "TPU v5 lite": "v5e",
  "TPU v5": "v5p",
  "TPU v5p": "v5p",
  "TPU v6 lite": "v6e",
}
_EXTRA = "pip install -e '.[compile-tpu]'"


def of_device(device: jax.Device) -> Chip | None:
  """Returns the data sheet of a device that is here, None if there is none."""
  name = _HERE.get(device.device_kind)
  return CHIPS[name] if name else None


def parse(target: str) -> tuple[Chip, Sequence[jax.Device] | int | None]:
  """Returns a target's chip and devices; for "cpu:8" how many to simulate.

  Args:
    target: as "v5e:16x16", a TPU and its topology, "h100:8" or "cpu:8"; or
      "local", what JAX has here, with None as devices if it has no data sheet.

  Raises:
    ValueError: there is no such target, or its compiler is not installed.
  """
  if target == "local":
    chip = of_device(jax.devices()[0])
    return (chip, jax.devices()) if chip else (CHIPS["cpu"], None)
  name, _, topology = target.partition(":")
  if name not in CHIPS:
    raise ValueError(errors.unknown("--target", target, ["local", *CHIPS]))
  chip, sizes = CHIPS[name], topology.split("x")
  numbers = all(re.fullmatch(r"[1-9]\d*", size) for size in sizes)
  if not numbers or (len(sizes) > 1 and not chip.largest):
    raise ValueError(
      f"--target={target!r}: expected a number of devices, as in h100:8 or "
      "cpu:8, or a TPU's topology, as in v5e:16x16 or v5p:4x4x4."
    )
  if name == "cpu":
    return chip, int(topology)
  if name in gpus.GPUS:
    found = gpus.devices(name, int(topology))
    hosts = len({device.process_index for device in found})
    link = chip.link if hosts == 1 else chip.between_hosts
    return dataclasses.replace(chip, link=link), found
  if len(sizes) != len(chip.largest) or any(
    int(size) > most
    for size, most in zip(sizes, sorted(chip.largest), strict=True)
  ):
    raise ValueError(
      f"--target={target!r}: expected {len(chip.largest)} sizes, at most "
      f"{'x'.join(map(str, chip.largest))}."
    )
  return chip, _tpus(target, sizes)


def _tpus(target, sizes):
  """Returns the devices of a TPU's topology."""
  if not importlib.util.find_spec("libtpu"):
    raise ValueError(
      f"--target={target!r} needs TPU's compiler, libtpu, but no TPU: {_EXTRA}."
    )
  # Otherwise libtpu looks for a TPU, and asks the virtual machine about one.
  os.environ |= {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # no device is opened
  }
  # The two cores of a v4's chip are one device, as they are on a pod.
  v4 = target.startswith("v4:")
  options = {"chip_config_name": "megacore"} if v4 else {}
  if {*sizes} == {"1"}:
    options["chips_per_host_bounds"] = (1, 1, 1)
  try:
    found = topologies.get_topology_desc(target, platform="tpu", **options)
    return found.devices
  except Exception as e:  # each version of libtpu raises others
    reason = str(e).partition("\n")[0]
    raise ValueError(
      f"--target={target!r}: TPU's compiler says {reason!r}. Topologies are of "
      "one chip or of whole hosts: 2x2 chips of a v5e or v6e, 2x2x1 of a v4 or "
      "v5p."
    ) from e
