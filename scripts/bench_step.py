"""Compares our training step with timm's and big_vision's."""

from dpn.scripts import main

if __name__ == "__main__":
  main.benchmark("step")
