"""Who may import what, read from the source of every module.

And what an import may not bring along.
"""

import ast
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parent.parent
MAY_IMPORT = {
  "dpn": set(),
  "input_pipeline": {"dpn"},
  "evaluators": {"dpn", "input_pipeline"},
  "trainers": {"dpn", "input_pipeline", "evaluators"},
  "configs": set(),
}
MAY_IMPORT["scripts"] = {*MAY_IMPORT}
MAY_IMPORT["benchmarks"] = {*MAY_IMPORT}
# Where a library is allowed: a folder, or a file.
HOMES = {
  "cv2": [
    "input_pipeline/",
    "benchmarks/segmentation_peer.py",
    "scripts/mini_data.py",
  ],
  "grain": ["input_pipeline/"],
  "orbax": ["dpn/weights/checkpoint.py"],
  "tensorflow": ["benchmarks/input_peers.py"],
  "tensorflow_datasets": ["input_pipeline/"],
  "torch": [
    "benchmarks/input_peers.py",
    "benchmarks/step_peers.py",
    "benchmarks/without_cuda.py",
  ],
  # Private modules of JAX, and C behind Python's back.
  "jax._src": [],
  "ctypes": ["dpn/host_memory.py"],
  # Entry points and what they share; and Grain's worker processes read flags.
  "absl.flags": [
    "trainers/cli.py",
    "trainers/train.py",
    "scripts/",
    "input_pipeline/loader.py",
  ],
}
# Folders of `dpn`, and which others of them their modules may not import.
LAYERS = {
  "dpn/models/": ("dpn.weights", "dpn.tasks"),
  "dpn/weights/": ("dpn.tasks",),
}
# Imports of ours inside functions. The first is for users: a model from a path.
DOORS = {
  ("dpn/models/vit.py", "dpn.weights.pretrained"),
  ("input_pipeline/sources/arrays.py", "input_pipeline.sources.glyphs"),
}
# Linked into `dpn`, where their modules have their names.
FOLDERS = ("configs", "evaluators", "input_pipeline", "scripts", "trainers")
CONFIGS_MAY_IMPORT = {*sys.stdlib_module_names, "configs", "ml_collections"}
# Configs may import these.
WITHOUT_JAX = {
  *("dpn.calls", "dpn.errors", "dpn.image_files", "dpn.registry", "dpn.schema"),
  "dpn.stems",
}
MODULES = [
  path.relative_to(ROOT).as_posix()
  for package in MAY_IMPORT
  for path in sorted((ROOT / package).rglob("*.py"))
]


def _imports(source, inside_functions=False):
  """Returns the dotted names a module imports, wherever it does so.

  `dpn.trainers.x` is called `trainers.x`, after its folder.
  """
  tree = ast.parse(source)
  if inside_functions:
    defs = (ast.FunctionDef, ast.AsyncFunctionDef)
    bodies = [node.body for node in ast.walk(tree) if isinstance(node, defs)]
    tree = ast.Module([node for body in bodies for node in body], [])
  names = set()
  for node in ast.walk(tree):
    if isinstance(node, ast.Import):
      names |= {alias.name for alias in node.names}
    elif isinstance(node, ast.ImportFrom):
      assert not node.level, "House style: imports are absolute."
      names |= {f"{node.module}.{alias.name}" for alias in node.names}
  ours = tuple(f"dpn.{folder}" for folder in FOLDERS)
  return {n.removeprefix("dpn.") if n.startswith(ours) else n for n in names}


def _violations(module, names):
  """Returns what `module` imports and may not."""
  package = module.partition("/")[0]
  known = MAY_IMPORT[package] | {package}
  names = names - (WITHOUT_JAX if package == "configs" else set())
  bad = []
  for name in sorted(names - {"dpn"}):
    top = name.partition(".")[0]
    ours = top in MAY_IMPORT and top not in known
    for layer, above in LAYERS.items():
      if module.startswith(layer) and f"{name}.".startswith(
        tuple(f"{x}." for x in above)
      ):
        ours = ours or (module, name) not in DOORS
    if ours or (package == "configs" and top not in CONFIGS_MAY_IMPORT):
      bad.append(name)
    for library, homes in HOMES.items():
      if f"{name}.".startswith(f"{library}.") and not any(
        module.startswith(home) for home in homes
      ):
        bad.append(name)
  return bad


@pytest.mark.parametrize(
  "module",
  [m for m in MODULES if not m.endswith(("_test.py", "configs/conftest.py"))],
)
def test_imports_go_one_way(module):
  source = (ROOT / module).read_text()
  assert _violations(module, _imports(source)) == []
  if module.startswith("benchmarks/"):  # peers, each in its own process
    return
  late = _imports(source, inside_functions=True)
  ours = {n for n in late if n.partition(".")[0] in MAY_IMPORT}
  assert {(module, name) for name in ours} <= DOORS


def test_the_list_of_modules_is_complete():
  packages = {path.parent.name for path in ROOT.glob("*/__init__.py")}
  assert packages == set(MAY_IMPORT) == {"dpn", "benchmarks", *FOLDERS}
  assert "dpn/models/vit.py" in MODULES
  assert "trainers/train.py" in MODULES


def _imported(modules, libraries):
  """Returns which libraries importing some modules brings along."""
  code = (
    f"import sys, {', '.join(modules)};"
    f"print(*[name for name in {libraries} if name in sys.modules])"
  )
  done = subprocess.run(
    [sys.executable, "-c", code],
    cwd=ROOT,
    capture_output=True,
    text=True,
    check=True,
  )
  return done.stdout.split()


def test_the_model_brings_no_data_library():
  assert not _imported(
    ["dpn.models.vit", "dpn.tasks", "dpn.optim"],
    ["tensorflow", "torch", "cv2", "grain", "tensorflow_datasets", "orbax"],
  )


def test_configs_bring_no_jax():
  names = [m.removesuffix(".py").replace("/", ".") for m in MODULES]
  configs = [
    f"dpn.{name.removesuffix('.__init__')}"
    for name in names
    if name.startswith("configs.") and not name.endswith(("_test", "conftest"))
  ]
  assert "dpn.configs.images" in configs
  assert not _imported(configs, ["jax", "numpy", "cv2"])
