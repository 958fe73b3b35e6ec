"""Measures what this project claims about GPUs; see scripts/gpu_report.sh."""

from dpn.scripts import main

if __name__ == "__main__":
  main.benchmark("gpu_report")
