"""Trains ViT-Lite-7/4 on CIFAR-10 with its authors' code and with ours."""

from dpn.scripts import main

if __name__ == "__main__":
  main.benchmark("vit_lite")
