"""Strict JAX for every test: 4 CPU devices, no silent rank promotion."""

import importlib
import importlib.metadata
import os
import pathlib

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["HF_HUB_OFFLINE"] = "1"  # paths that do not exist may be names there
# Tests compile a lot and compute little: less optimized code is there sooner.
FLAGS = [
  "--xla_force_host_platform_device_count=4",
  "--xla_backend_optimization_level=0",
]
# A third of the time to compile; XLA ends the process at flags it has dropped.
if importlib.metadata.version("jaxlib").startswith("0.10."):
  FLAGS.append("--xla_cpu_use_fusion_emitters=false")
os.environ["XLA_FLAGS"] = " ".join([os.environ.get("XLA_FLAGS", ""), *FLAGS])

# Tests, their processes and those of pytest-xdist compile each program once,
# and so does the next run in this checkout; `pytest --cache-clear` forgets it.
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
  cache = pathlib.Path(__file__).parent / ".pytest_cache/d/jax"
  os.environ["JAX_COMPILATION_CACHE_DIR"] = str(cache)
  os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.1"
  os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"

import jax  # noqa: E402, reads what is set above
import pytest  # noqa: E402

jax.config.update("jax_numpy_rank_promotion", "raise")


@pytest.fixture
def compile_fast():
  """Lets JAX compile in less time programs that run for longer."""
  jax.config.update("jax_disable_most_optimizations", True)
  yield
  jax.config.update("jax_disable_most_optimizations", False)


if os.environ.get("REQUIRE_EXTRAS"):  # by test.sh --all: nothing is skipped
  pytest.importorskip = lambda name, **unused: importlib.import_module(name)
  importlib.import_module("nvidia.nvimgcodec")  # or OpenCV would take its place
