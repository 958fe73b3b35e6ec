"""Runs another project's PyTorch training script, as it is, on CPUs.

  python benchmarks/without_cuda.py path/of/train.py ITS ARGUMENTS

Meant for scripts that move everything to a GPU unconditionally: without one,
those calls do nothing. It needs PyTorch and nothing of ours.
"""

import pathlib
import runpy
import sys

import torch


def ignore_cuda():
  """Turns PyTorch's calls for CUDA into ones that stay on the CPU."""
  torch.Tensor.cuda = torch.nn.Module.cuda = lambda self, *unused: self
  torch.cuda.synchronize = lambda: None
  full = torch.full
  torch.full = lambda *args, device=None, **kw: full(*args, **kw)


def main():
  if not torch.cuda.is_available():
    ignore_cuda()
  sys.argv = sys.argv[1:]
  sys.path[0] = str(pathlib.Path(sys.argv[0]).parent)
  runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
  main()
