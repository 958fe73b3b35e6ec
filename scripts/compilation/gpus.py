"""NVIDIA GPUs that a program can be compiled for without a driver."""

import importlib.util
import os
from collections.abc import Sequence

import jax
from jax.experimental import topologies

# XLA's: without a GPU nothing can be timed, so no kernel is chosen by its time,
# and matrix products are cuBLAS's (Triton's would need tiles found by timing).
_FLAGS = "--xla_gpu_enable_triton_gemm=false --xla_gpu_autotune_level=0"
_DATA = "--xla_gpu_cuda_data_dir"
_HOST = 8  # GPUs
# XLA's GpuTargetConfigProto.
_TARGET = """\
gpu_device_info {{
threads_per_block_limit: 1024
threads_per_warp: 32
shared_memory_per_block: 49152
shared_memory_per_core: {shared}
threads_per_core_limit: 2048
core_count: {cores}
fpus_per_core: {fpus}
block_dim_limit_x: 2147483647
block_dim_limit_y: 65535
block_dim_limit_z: 65535
memory_bandwidth: {bandwidth}
l2_cache_size: {l2}
clock_rate_ghz: {clock}
device_memory_size: {memory}
shared_memory_per_block_optin: {optin}
cuda_compute_capability {{ major: {major} minor: 0 }}
registers_per_core_limit: 65536
registers_per_block_limit: 65536
}}
platform_name: "CUDA"
"""
_KIB, _MIB = 2**10, 2**20
_H100 = {"major": 9, "cores": 132, "fpus": 128, "shared": 228 * _KIB}
_H100 |= {"l2": 50 * _MIB, "clock": 1.98}  # GHz
GPUS = {  # for _TARGET, from NVIDIA's white papers
  "a100": {
    **{"major": 8, "cores": 108, "fpus": 64, "shared": 164 * _KIB},
    **{"l2": 40 * _MIB, "clock": 1.41, "bandwidth": 2039 * 10**9},
    "memory": 80 << 30,
  },
  "h100": _H100 | {"bandwidth": 3350 * 10**9, "memory": 80 << 30},
  "h200": _H100 | {"bandwidth": 4800 * 10**9, "memory": 141 * 10**9},
}


def attention(devices: Sequence[jax.Device] | None) -> str:
  """Returns what `flash.assume` is to assume of devices to compile for.

  Trying cuDNN's kernel takes a GPU; compiling it takes only the library.
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
      "no GPU: pip install -e '.[compile-gpu]'."
    )
  hosts, each = max(1, count // _HOST), min(count, _HOST)
  optin = GPUS[name]["shared"] - _KIB
  found = topologies.get_topology_desc(
    "",
    platform="cuda",
    target_config=_TARGET.format(**GPUS[name], optin=optin),
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
  plugins = ("jax_plugins", "jax_plugins.xla_cuda12")
  if not (nvcc and all(map(importlib.util.find_spec, plugins))):
    return False
  before, flags = os.environ.get("XLA_FLAGS", ""), f"{_DATA}={nvcc} {_FLAGS}"
  if flags not in before:  # an earlier target may have set them
    os.environ["XLA_FLAGS"] = f"{before} {flags}"
    os.environ["PATH"] = os.pathsep.join(
      [os.path.join(nvcc, "bin"), os.environ.get("PATH", "")]
    )
  return True
