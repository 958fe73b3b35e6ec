"""Compares our training step with timm's, big_vision's and the device's limit."""

from dpn.scripts import main

if __name__ == "__main__":
  main.benchmark("step")
