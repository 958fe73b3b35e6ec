"""Shows a command's --help without loading the libraries that it would run.

JAX and Orbax take seconds to load. If only help is asked for, modules are
loaded at their first use, and most of them never.
"""

import __future__

import os
import sys
from importlib import abc, machinery, util

EAGER = {"absl", "ml_collections", *sys.stdlib_module_names}


def prepare():
  """Makes the imports that follow lazy if a command is asked for its help."""
  program = os.path.basename(sys.argv[0])  # "-m" while Python looks for it
  if program in ("-m", "dpn") and {"-h", "--help"} & {*sys.argv}:
    sys.meta_path.insert(0, _Finder())


class _Finder(abc.MetaPathFinder):
  """Finds modules as usual, and leaves loading them to their first use."""

  def find_spec(self, fullname, path, target=None):
    root, _, submodule = fullname.partition(".")
    spec = machinery.PathFinder.find_spec(fullname, path, target)
    if spec and isinstance(spec.loader, machinery.SourceFileLoader):
      if root in ("scripts", "trainers"):
        spec.loader = _Source(fullname, spec.origin)
      elif root == "dpn" and not fullname.startswith("dpn.models"):
        spec.loader = _Lazy(_Source(fullname, spec.origin))
      elif fullname in sys.modules:  # its package's turn was only now
        spec.loader = _Loaded()
      elif root == "dpn" or not (root in EAGER or submodule):
        spec.loader = _Lazy(spec.loader)
    return spec


class _Lazy(util.LazyLoader):
  """Also gives the code of a module that is run as a command."""

  def get_code(self, fullname):
    return self.loader.get_code(fullname)


class _Loaded(abc.Loader):
  """Returns the module that is already loaded."""

  def create_module(self, spec):
    return sys.modules[spec.name]

  def exec_module(self, module):
    pass


class _Source(machinery.SourceFileLoader):
  """Compiles without evaluating annotations: they would load what they name.

  Not for Flax modules, whose fields are read from their annotations.
  """

  def get_code(self, fullname):
    flag = __future__.annotations.compiler_flag
    return compile(self.get_data(self.path), self.path, "exec", flag, True)
