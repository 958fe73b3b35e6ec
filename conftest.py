"""Strict JAX for every test: 4 CPU devices, no silent rank promotion."""

import importlib.metadata
import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Tests compile a lot and compute little: less optimized code is there sooner.
FLAGS = [
  "--xla_force_host_platform_device_count=4",
  "--xla_backend_optimization_level=0",
]
# A third of the time to compile; XLA ends the process at flags it has dropped.
if importlib.metadata.version("jaxlib").startswith("0.10."):
  FLAGS.append("--xla_cpu_use_fusion_emitters=false")
os.environ["XLA_FLAGS"] = " ".join([os.environ.get("XLA_FLAGS", ""), *FLAGS])

import jax  # noqa: E402, reads what is set above

jax.config.update("jax_numpy_rank_promotion", "raise")
