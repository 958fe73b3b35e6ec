"""An editor finds what every import of this project names.

Jedi, which resolves names as language servers do, reads the source only: what
a module would do to `sys.path` or `sys.meta_path` when run does not help it.
"""

import ast
import pathlib

import jedi
import pytest

ROOT = pathlib.Path(__file__).parents[1]
FOLDERS = (
  *("benchmarks", "configs", "dpn", "evaluators", "input_pipeline"),
  *("scripts", "trainers"),
)
OURS = ("benchmarks", "dpn")


def _names(tree):
  """Yields (line, column) of each name that is imported from `OURS`."""
  for node in ast.walk(tree):
    if isinstance(node, ast.Import):
      for alias in node.names:
        if alias.name.split(".")[0] in OURS:
          last = alias.name.rpartition(".")[0]
          yield alias.lineno, alias.col_offset + len(last) + bool(last)
    elif isinstance(node, ast.ImportFrom) and (
      (node.module or "").split(".")[0] in OURS
    ):
      yield from ((alias.lineno, alias.col_offset) for alias in node.names)


def unresolved(root: pathlib.Path, files) -> list[str]:
  """Returns "file:line" of every import of ours that leads nowhere."""
  project = jedi.Project(root, sys_path=[str(root)], smart_sys_path=False)
  bad = []
  for path in files:
    text = path.read_text()
    script = jedi.Script(text, path=path, project=project)
    for line, column in _names(ast.parse(text)):
      found = script.goto(line, column, follow_imports=True)
      inside = [d for d in found if d.module_path and _in(root, d.module_path)]
      if not inside:
        bad.append(f"{path.relative_to(root)}:{line}")
  return bad


def _in(root, path):
  return path.resolve().is_relative_to(root.resolve())


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_import_of_the_checkout_resolves(folder):
  files = sorted((ROOT / folder).rglob("*.py"))
  assert files
  assert unresolved(ROOT, files) == []


def test_an_import_of_nothing_is_found(tmp_path):
  (tmp_path / "dpn").mkdir()
  (tmp_path / "dpn" / "__init__.py").touch()
  path = tmp_path / "dpn" / "x.py"
  path.write_text("from dpn import x\nfrom dpn.trainers import nothing\n")
  assert unresolved(tmp_path, [path]) == ["dpn/x.py:2"]
