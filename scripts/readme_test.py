"""What README.md tells a person to type works."""

import argparse
import contextlib
import importlib
import os
import pathlib
import re
import runpy
import shlex
import subprocess
import sys

import jax
import numpy as np
import pytest

from dpn import trees
from dpn.input_pipeline import conftest as testing
from dpn.models import vit

ROOT = pathlib.Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
# The pages that hold what README does not: their commands are tested here too.
PAGES = ("index", "training", "data", "reports", "fault_tolerance")
TEXT = README + "".join((ROOT / f"docs/{p}.md").read_text() for p in PAGES)


def _blocks(language, text=TEXT):
  return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


COMMANDS = [
  *dict.fromkeys(
    line for block in _blocks("bash") for line in block.strip().splitlines()
  )
]
MODULES = [c for c in COMMANDS if c.startswith("python -m ")]
# They take minutes, or runs that this test does not have.
PARSED_ONLY = (
  *("benchmarks.", "scripts.select_best", "scripts.tables", "scripts.figures"),
  *("scripts.claims", "scripts.report", "scripts.predict"),
)
IN_PROCESS = [
  c for c in MODULES if c.split()[2].startswith((*PARSED_ONLY, "scripts.sweep"))
]
CONFIGS = re.findall(
  r"(?<!scripts\.sweep --config )configs/([\w/]+)\.py(?::([\w=/.,]+))?", TEXT
)
PHOTOS = "data=photos,init=vit_b16.npz,variant=B/16"  # what the reader has


def test_every_kind_of_command_is_known():
  known = ("bash scripts/", "python -m ", "python3 -m venv", "pip install")
  known += ("mkdocs build",)
  assert [c for c in COMMANDS if not c.startswith(known)] == []
  assert len(MODULES) >= 1


def test_the_front_page_is_short():
  assert len(README.splitlines()) < 200


@pytest.mark.parametrize("command", [c for c in COMMANDS if c[:5] == "bash "])
def test_scripts_exist_and_parse(command):
  script = ROOT / shlex.split(command)[1]
  subprocess.run(["bash", "-n", script], check=True)


@pytest.mark.parametrize("command", IN_PROCESS)
def test_arguments_are_accepted(command, monkeypatch):
  words = shlex.split(command)[2:]
  if words[0] == "scripts.sweep":
    words.append("--dry_run")
  else:
    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", _parse_and_exit)
  monkeypatch.setattr(sys, "argv", words)
  monkeypatch.chdir(ROOT)
  # What runpy runs may not be imported yet.
  monkeypatch.delitem(sys.modules, words[0], raising=False)
  with contextlib.suppress(_ParsedError):
    runpy.run_module(words[0], run_name="__main__")


class _ParsedError(Exception):
  """The arguments were parsed without error."""


def _parse_and_exit(parser, args=None):
  _, unknown = parser.parse_known_args(args)
  assert unknown == []
  raise _ParsedError


@pytest.mark.parametrize("command", sorted({*MODULES} - {*IN_PROCESS}))
def test_modules_run(command, tmp_path):
  words = shlex.split(command)[2:]
  words = [
    word.replace(PHOTOS, _photos(tmp_path)) if PHOTOS in word else word
    for word in words
  ]
  words[words.index("--config") + 1] += ",runlocal"
  if words[0] == "scripts.diagnose":
    words += ["--steps=2", "--examples=64"]
  if "--workdir" in words:
    words[words.index("--workdir") + 1] = str(tmp_path / "run")
  if "--out" in words:
    words[words.index("--out") + 1] = str(tmp_path / "out.png")
  if "--checkpoint" in words:
    words[words.index("--checkpoint") + 1] = _checkpoint(tmp_path)
    words.append("--config.model.variant=mu/16")
  result = subprocess.run(
    [sys.executable, "-m", *words],
    cwd=ROOT,
    env=os.environ | {"TFDS_DATA_DIR": str(tmp_path)},
    capture_output=True,
    text=True,
    check=False,
  )
  assert result.returncode == 0, result.stderr
  if "--workdir" in words:
    assert (tmp_path / "run" / "done.json").exists()


def _photos(tmp_path):
  """Makes up pictures and a small ViT; returns the config's arguments."""
  photos = testing.class_folders(tmp_path / "photos")
  return f"data={photos},init={_vit(tmp_path)},variant=mu/16"


def _checkpoint(tmp_path):
  """Makes up ImageNet and a plain ViT for it; returns the ViT's file."""
  testing.imagenet2012(str(tmp_path))
  return _vit(tmp_path)


def _vit(tmp_path):
  image = np.zeros((1, 224, 224, 3), np.float32)
  model = vit.Model(7, variant="mu/16", pool_type="tok")
  params = model.init(jax.random.key(0), image)["params"]
  np.savez(tmp_path / "vit.npz", **trees.flatten(params))
  return str(tmp_path / "vit.npz")


@pytest.mark.parametrize(("name", "arg"), sorted(set(CONFIGS)))
def test_configs_load(name, arg, tmp_path, monkeypatch):
  testing.class_folders(tmp_path / "photos")
  monkeypatch.chdir(tmp_path)
  config = importlib.import_module(
    f"dpn.configs.{name.replace('/', '.')}"
  ).get_config(f"{arg},runlocal" if arg else "runlocal")
  assert config.total_steps == (0 if name == "fewshot" else 2)


@pytest.mark.parametrize("code", _blocks("python", README))
def test_python_runs(code, monkeypatch):
  monkeypatch.setitem(vit.VARIANTS, "B", vit.VARIANTS["mu"])  # is smaller
  exec(code, values := {})
  assert values["logits"].shape == (1, 1000)
