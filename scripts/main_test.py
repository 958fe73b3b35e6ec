"""The command `dpn`, and the package without its checkout."""

import os
import pathlib
import subprocess
import sys

import pytest

from dpn.scripts import main, resolve_test

ROOT = pathlib.Path(__file__).parents[1]
FOREIGN = ("configs", "evaluators", "input_pipeline", "scripts", "trainers")


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
  """Returns a folder with what a wheel holds, and a user's project."""
  folder = tmp_path_factory.mktemp("installed")
  subprocess.run(
    [
      *(sys.executable, "setup.py", "-q", "build", "--build-base", folder),
      *("build_py", "--build-lib", folder / "site"),
    ],
    cwd=ROOT,
    check=True,
  )
  for name in FOREIGN:
    (folder / "project" / name).mkdir(parents=True)
    (folder / "project" / name / "__init__.py").write_text("MINE = True\n")
  return folder


def _python(installed, *arguments):
  return subprocess.run(
    [sys.executable, *arguments],
    cwd=installed / "project",
    env=os.environ | {"PYTHONPATH": str(installed / "site")},
    capture_output=True,
    text=True,
  )


def test_a_users_packages_of_the_same_names_stay_theirs(installed):
  assert os.listdir(installed / "site") == ["dpn"]
  modules = [
    ".".join(path.with_suffix("").relative_to(ROOT).parts)
    for name in FOREIGN
    for path in sorted((ROOT / name).glob("*.py"))
    if not path.stem.endswith(("__init__", "conftest", "_test"))
  ]
  lines = [
    *(f"import {name}; assert {name}.MINE" for name in FOREIGN),
    *(f"import dpn.{module}" for module in modules),
    "import sys",
    f"assert not [m for m in sys.modules if m.split('.')[0] in {FOREIGN}",
    "  and '.' in m]",
    "assert sys.modules['dpn.evaluators'].__file__.startswith(",
    f"  {str(installed / 'site')!r})",
  ]
  done = _python(installed, "-c", "\n".join(lines))
  assert done.returncode == 0, done.stderr


def test_a_wheel_has_data_files_and_no_tests(installed):
  site = installed / "site" / "dpn"
  data = [
    path.relative_to(ROOT)
    for name in FOREIGN
    for suffix in ("json", "css")
    for path in (ROOT / name).rglob(f"*.{suffix}")
  ]
  assert len(data) >= 3
  assert [path for path in data if not (site / path).exists()] == []
  assert [*site.rglob("*_test.py")] == []


@pytest.mark.slow
def test_every_import_of_a_wheel_resolves(installed):
  site = installed / "site"
  assert resolve_test.unresolved(site, sorted(site.rglob("*.py"))) == []


def test_the_command_trains_a_config_of_the_package(installed):
  done = _python(
    installed,
    *("-m", "dpn.scripts.main", "train", "--workdir", "../W"),
    *("--config", "configs/digits.py:runlocal", "--config.evals={}"),
  )
  assert done.returncode == 0, done.stderr
  assert (installed / "W" / "done.json").exists()


def test_commands_are_listed_and_guessed(capsys):
  main.main([])
  printed = capsys.readouterr().out
  assert "  train             Trains what a config describes." in printed
  assert "  sweep  " in printed
  assert "_test" not in printed
  with pytest.raises(SystemExit, match="Did you mean 'evaluate'"):
    main.main(["evalute"])


def test_a_config_of_ones_own_comes_first(tmp_path, monkeypatch):
  words = ["--config=configs/digits.py:a=1", "--config", "configs/mine.py"]
  ours = str(ROOT / "configs" / "digits.py")
  monkeypatch.chdir(tmp_path)
  assert main.packaged_configs(words) == [f"--config={ours}:a=1", *words[1:]]
  study = "configs/studies/photos.py"
  [given] = main.packaged_configs([f"--config={study}"])
  assert given == f"--config={ROOT / study}"
  (tmp_path / "configs").mkdir()
  (tmp_path / "configs" / "digits.py").touch()
  assert main.packaged_configs(words) == words
