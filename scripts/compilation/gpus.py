"""NVIDIA GPUs that a program can be compiled for without a driver."""

import dataclasses
import importlib.util
import os
from collections.abc import Sequence

import jax
from jax.experimental import topologies

# Of XLA: without a GPU nothing can be timed, so that no kernel is chosen by its
# time, and products are cuBLAS's (Triton's would need tiles found by timing).
_FLAGS = "--xla_gpu_enable_triton_gemm=false --xla_gpu_autotune_level=0"
_DATA = "--xla_gpu_cuda_data_dir"
_HOST = 8  # GPUs
EXTRA = "pip install -e '.[compile-gpu]'"


@dataclasses.dataclass(frozen=True)
class Gpu:
  """What XLA asks of a GPU, from NVIDIA's white papers of A100 and H100.

  Attributes:
    capability: compute capability, major and minor.
    cores: streaming multiprocessors.
    fpus: units for float32 of each.
    shared: KiB of shared memory of each.
    l2: MiB of cache.
    clock: GHz.
    bandwidth: of its memory in bytes/s.
    memory: its bytes.
  """

  capability: tuple[int, int]
  cores: int
  fpus: int
  shared: int
  l2: int
  clock: float
  bandwidth: int
  memory: int

  def describe(self) -> str:
    """Returns XLA's GpuTargetConfigProto as text."""
    major, minor = self.capability
    device = {
      **{"threads_per_block_limit": 1024, "threads_per_warp": 32},
      "shared_memory_per_block": 48 << 10,
      "shared_memory_per_core": self.shared << 10,
      "threads_per_core_limit": 2048,
      **{"core_count": self.cores, "fpus_per_core": self.fpus},
      **{"block_dim_limit_x": 2**31 - 1, "block_dim_limit_y": 2**16 - 1},
      "block_dim_limit_z": 2**16 - 1,
      "memory_bandwidth": self.bandwidth,
      "l2_cache_size": self.l2 << 20,
      "clock_rate_ghz": self.clock,
      "device_memory_size": self.memory,
      "shared_memory_per_block_optin": (self.shared - 1) << 10,
      "cuda_compute_capability": f"{{ major: {major} minor: {minor} }}",
      **{"registers_per_core_limit": 2**16, "registers_per_block_limit": 2**16},
    }
    fields = "\n".join(
      f"{name} {value}" if str(value)[0] == "{" else f"{name}: {value}"
      for name, value in device.items()
    )
    return f'gpu_device_info {{\n{fields}\n}}\nplatform_name: "CUDA"\n'


_H100 = Gpu((9, 0), 132, 128, 228, 50, 1.98, 3350 * 10**9, 80 << 30)
GPUS = {
  "a100": Gpu((8, 0), 108, 64, 164, 40, 1.41, 2039 * 10**9, 80 << 30),
  "h100": _H100,
  "h200": dataclasses.replace(
    _H100, bandwidth=4800 * 10**9, memory=141 * 10**9
  ),
}


def attention(devices: Sequence[jax.Device] | None) -> str:
  """Returns what `flash.assume` is to assume of devices to compile for.

  To try cuDNN's kernel takes a GPU; to compile it takes the library alone.
  """
  return "cudnn" if devices and devices[0].platform == "gpu" else ""


def devices(name: str, count: int) -> list[jax.Device]:
  """Returns devices to compile for, eight on each host.

  Raises:
    ValueError: the compiler is not installed, or hosts would not be full.
  """
  target = f"{name}:{count}"
  if count > _HOST and count % _HOST:
    raise ValueError(
      f"--target={target}: a host has {_HOST} GPUs, expected up to {_HOST} or "
      "a multiple of it."
    )
  if not find_compiler():
    raise ValueError(
      f"--target={target} needs XLA's compiler for CUDA and nvcc's ptxas, but "
      f"no GPU: {EXTRA}."
    )
  hosts, each = max(1, count // _HOST), min(count, _HOST)
  found = topologies.get_topology_desc(
    "",
    platform="cuda",
    target_config=GPUS[name].describe(),
    topology=f"1x{hosts}x{each}",
  )
  return found.devices


def find_compiler() -> bool:
  """Returns whether the compiler is installed, and tells XLA where.

  XLA reads its flags once, when it first compiles something.
  """
  spec = importlib.util.find_spec("nvidia")
  roots = list(spec.submodule_search_locations or ()) if spec else []
  tools = [os.path.join(root, "cuda_nvcc") for root in roots]
  nvcc = next(filter(os.path.isdir, tools), None)
  if not (nvcc and importlib.util.find_spec("jax_plugins.xla_cuda12")):
    return False
  before, flags = os.environ.get("XLA_FLAGS", ""), f"{_DATA}={nvcc} {_FLAGS}"
  if flags not in before:  # of another target
    os.environ["XLA_FLAGS"] = f"{before} {flags}"
    os.environ["PATH"] = os.pathsep.join(
      [os.path.join(nvcc, "bin"), os.environ.get("PATH", "")]
    )
  return True
