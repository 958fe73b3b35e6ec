"""Strict JAX for every test: 4 CPU devices, no silent rank promotion."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Tests compile a lot and compute little: less optimized code is there sooner.
os.environ["XLA_FLAGS"] = " ".join(
  [
    os.environ.get("XLA_FLAGS", ""),
    "--xla_force_host_platform_device_count=4",
    "--xla_backend_optimization_level=0",
  ]
).strip()

import jax

jax.config.update("jax_numpy_rank_promotion", "raise")
