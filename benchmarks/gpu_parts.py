"""Parts of benchmarks.gpu_report that no other benchmark measures.

  python -m benchmarks.gpu_parts numbers \
    '{"variant": "B/16", "dtype": "bfloat16"}' --json numbers.json

`versions` lists software and device. `numbers` compares gradients of one batch
that should agree: attention by XLA with the kernel that `auto` takes, and this
device with the CPU.
"""

import contextlib
import dataclasses
import functools
import importlib.metadata
import json
import platform
import shutil
import subprocess
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

import dpn.tasks
from benchmarks import harness, step_peers

LIBRARIES = ("jax", "jaxlib", "flax", "optax", "nvidia-cudnn-cu12",
             "nvidia-cudnn-cu13")  # fmt: skip
NVIDIA = ("driver_version", "clocks.max.sm", "power.limit")
# How far gradients may differ, relative to their norm. Rounding to bfloat16
# leaves about 1%, float32 a part in 10⁵; a wrong kernel leaves far more.
MOST = {"bfloat16": 0.05, "float32": 1e-3}
EXAMPLES = 8


def versions() -> dict[str, Any]:
  """Returns the versions and device properties that results may depend on."""
  device = jax.devices()[0]
  found = {"device": device.device_kind, "platform": device.platform}
  found |= {"devices": jax.device_count(), "python": platform.python_version()}
  for name in LIBRARIES:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
      found[name] = importlib.metadata.version(name)
  if shutil.which("nvidia-smi"):
    query = f"--query-gpu={','.join(NVIDIA)}"
    command = ["nvidia-smi", query, "--format=csv,noheader"]
    done = subprocess.run(command, capture_output=True, text=True)
    values = done.stdout.partition("\n")[0].split(", ")
    found |= dict(zip(NVIDIA, values, strict=False))
  return found


def numbers(setting: step_peers.Setting) -> dict[str, dict[str, Any]]:
  """Returns how far gradients are from those they should equal.

  A class token makes the number of tokens odd. Where cuDNN fails, `auto` falls
  back silently, so on a GPU the kernel is requested by name.
  """
  half = np.dtype(setting.dtype).itemsize == 2
  impl = "cudnn" if half and jax.default_backend() == "gpu" else "auto"
  setting = dataclasses.replace(setting, scan=True)  # compiles one block
  exact = dataclasses.replace(setting, dtype="float32")

  def on_cpu():
    with jax.default_device(jax.devices("cpu")[0]):
      return gradient(exact)

  with jax.default_matmul_precision("highest"):
    here = functools.partial(gradient, exact)
    difference = compare(here, on_cpu, MOST["float32"])
  found = {"this device and CPU, float32": difference}
  for pool, tokens in (("gap", "even"), ("tok", "odd")):
    by = (
      functools.partial(gradient, setting, attn_impl=kind, pool_type=pool)
      for kind in (impl, "xla")
    )
    name = f"attention {impl} and xla, {setting.dtype}, {tokens} tokens"
    found[name] = compare(*by, MOST[setting.dtype])
  return found


def compare(one: Callable, other: Callable, most: float) -> dict[str, Any]:
  """Returns how far apart two trees are, relative to the second's norm.

  `found` is that distance; if a function that makes one of the trees failed,
  `error` is its message instead. `most` is the limit, `met` whether it holds.
  """
  try:
    a, b = (
      np.concatenate([np.ravel(x).astype(float) for x in jax.tree.leaves(f())])
      for f in (one, other)
    )
  except (ValueError, RuntimeError) as e:  # XLA's are RuntimeErrors
    return {"error": str(e), "most": most, "met": False}
  distance = float(np.linalg.norm(a - b) / np.linalg.norm(b))
  return {"found": distance, "most": most, "met": distance <= most}


def gradient(setting: step_peers.Setting, **options) -> Any:
  """Returns the gradient of one batch's loss at initial parameters."""
  options = {"stem_ln": "dpn", "head_zeroinit": False, **options}
  task = dpn.tasks.make(step_peers.config_of(setting, **options))
  rng = np.random.default_rng(0)
  shape = (EXAMPLES, setting.resolution, setting.resolution, 3)
  batch = {
    "image": rng.uniform(-1, 1, shape).astype("float32"),
    "labels": np.eye(step_peers.NUM_CLASSES, dtype="float32")[:EXAMPLES],
  }
  variables = jax.jit(task.init)(jax.random.key(0), batch)
  loss = lambda v: task.measure(v, batch)[0]["loss"].mean()
  return jax.device_get(jax.jit(jax.grad(loss))(variables))


def main(argv: Sequence[str] | None = None):
  parts = {f.__name__: f for f in (versions, numbers)}
  parser = harness.parser(__doc__)
  parser.add_argument("part", choices=parts)
  parser.add_argument("setting", nargs="*", help="fields of a Setting as JSON")
  args = parser.parse_args(argv)
  settings = [step_peers.Setting(**json.loads(text)) for text in args.setting]
  found = parts[args.part](*settings)
  for name, value in found.items():
    print(f"{name}: {value}")
  harness.write_json(args.json, found)


if __name__ == "__main__":
  main()
