"""Makes the folders beside `dpn`, of a checkout, parts of the package `dpn`.

There, `python -m trainers.train` and `import evaluators.fewshot_lsr` work too,
as in big_vision. They give the modules of `dpn.trainers` and `dpn.evaluators`
themselves: of two copies of a class, neither is an instance of the other.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys

FOLDERS = ("configs", "evaluators", "input_pipeline", "scripts", "trainers")


def add_folders(package_path: list[str]) -> None:
  """Adds the checkout to `dpn.__path__`, and the short names of its modules."""
  root = os.path.dirname(package_path[0])
  package_path.append(root)
  sys.meta_path.insert(0, _ShortNames(root))


class _ShortNames(importlib.abc.MetaPathFinder, importlib.abc.Loader):
  """Imports `trainers.x` as `dpn.trainers.x`.

  But only if `trainers`, which Python has imported before, is our folder.
  """

  def __init__(self, root):
    self._root = root
    self._specs = {}

  def find_spec(self, fullname, path=None, target=None):
    folder, _, rest = fullname.partition(".")
    if not rest or folder not in FOLDERS:
      return None
    if list(path or ()) != [
      os.path.join(self._root, *fullname.split(".")[:-1])
    ]:
      return None
    found = importlib.util.find_spec(f"dpn.{fullname}")
    return found and importlib.machinery.ModuleSpec(
      fullname,
      self,
      origin=found.origin,
      is_package=found.submodule_search_locations is not None,
    )

  def create_module(self, spec):
    module = importlib.import_module(f"dpn.{spec.name}")
    self._specs[spec.name] = module.__spec__
    return module

  def exec_module(self, module):
    """Gives a module, complete already, the name back that it had."""
    module.__spec__ = self._specs.pop(module.__spec__.name)

  def get_code(self, fullname):
    """Returns what `python -m` runs."""
    name = f"dpn.{fullname}"
    return importlib.util.find_spec(name).loader.get_code(name)
