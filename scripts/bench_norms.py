"""Compares the cost of every normalization in training with pre-LN's."""

from dpn.scripts import main

if __name__ == "__main__":
  main.benchmark("norms")
