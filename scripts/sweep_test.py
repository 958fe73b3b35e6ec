"""Sweeps: which arms there are, and what becomes of them."""

import dataclasses
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

from dpn.scripts import sweep
from dpn.scripts.jobs import arms, local

ROOT = pathlib.Path(__file__).parents[1]

# Three arms with two seeds; get_config is that of a run that needs no JAX.
CONFIG = """
import ml_collections

def get_config(arg):
  if "wrong" in arg:
    raise ValueError("no such width")
  return ml_collections.ConfigDict({"seed": int(arg.rpartition("=")[2])})

def sweep(arg):
  seeds = int(arg.rpartition("=")[2]) if arg else 2
  return [
    {"name": name, "arg": f"{name},seed={seed}", "seed": seed}
    for name in ("a", "b", "c")
    for seed in range(seeds)
  ]
"""

# What stands in for trainers.train: it writes down how it was called.
TRAINER = """
import json, os, pathlib, signal, sys, time
_, config, _, workdir, *fields = sys.argv[1:]
workdir = pathlib.Path(workdir)
arm = config.partition(":")[2]
assert (workdir / "log.txt").exists()
(workdir / "config.json").write_text("{}")
with (workdir.parent / "calls").open("a") as f:
  f.write(f"{arm} {fields}\\n")
print("step 1/4 (25%)", flush=True)
if arm.startswith("b") and (workdir.parent / "no_memory").exists():
  os.kill(os.getpid(), signal.SIGKILL)
if arm.startswith("b") and not (workdir.parent / "mended").exists():
  sys.exit("Error: the disk is full.")
if arm.startswith("c") and (workdir.parent / "slow").exists():
  def save(*unused):
    (workdir / "saved").touch()
    sys.exit()
  signal.signal(signal.SIGTERM, save)
  (workdir / "waiting").touch()
  time.sleep(60)
(workdir / "done.json").write_text("{}")
"""


@pytest.fixture
def made(tmp_path, monkeypatch):
  """Returns (--config, --out) of a sweep whose trainer is the one above."""
  config = tmp_path / "config.py"
  config.write_text(CONFIG)
  monkeypatch.setattr(arms, "TRAINER", ("-c", TRAINER))
  return str(config), str(tmp_path / "out")


def _main(made, *more):
  return sweep.main(["--config", made[0], "--out", made[1], *more])


def _calls(made):
  file = pathlib.Path(made[1], "calls")
  return file.read_text().splitlines() if file.exists() else []


def test_seeds_together(made, capsys):
  out = pathlib.Path(made[1])
  (out / "b-s0").mkdir(parents=True)
  (out / "b-s0/done.json").write_text("{}")
  more = ("--seeds_together", "--set", "lr=0.1")
  _main(made, *more, "--print_commands", "--seeds", "3")
  calls = capsys.readouterr().out.split("python -c ")[1:]
  place = lambda name: f"--workdir '{out}/{name}-s{{seed}}' --config.lr=0.1"
  seeds_of = ("0,1,2", "1,2", "0,1,2")
  for name, seeds, call in zip("abc", seeds_of, calls, strict=True):
    first = seeds[0]
    assert f"--config {made[0]}:{name},seed={first} {place(name)}" in call
    assert call.rstrip().endswith(f" --seeds={seeds}")
  path = pathlib.Path(made[0])
  path.write_text(CONFIG.replace('{"seed"', '{"total_steps": len(arg), "seed"'))
  _main(made, *more, "--print_commands")  # arguments of the same length
  path.write_text(CONFIG.replace('{"seed"', '{"model_init": arg, "seed"'))
  with pytest.raises(
    ValueError, match="configs of a differ in more than their"
  ):
    _main(made, *more)
  path.write_text(CONFIG)
  arm = lambda i: arms.Arm("a", f"a,seed={i}", i, {"lr": i}, made[1])
  with pytest.raises(ValueError, match="configs of a differ in more than"):
    arms.jobs(made[0], [arm(1), arm(2)], together=True)


def test_a_failing_arm_and_a_second_sweep(made, capsys):
  out = pathlib.Path(made[1])
  with pytest.raises(SystemExit) as exit_info:
    _main(made, "--jobs", "2", "--set", "lr=0.1", "--set", "config.loss=a b")
  assert exit_info.value.code == 1
  fields = "['--config.lr=0.1', '--config.loss=a b']"
  args = [f"{name},seed={seed}" for name in "abc" for seed in (0, 1)]
  assert sorted(_calls(made)) == [f"{arg} {fields}" for arg in args]
  text = capsys.readouterr().out
  assert "b-s1  failed: the disk is full. (" in text
  assert text.rstrip().endswith("4 done, 2 failed")
  index = json.loads((out / "sweep.json").read_text())
  assert index["arms"][3] == {
    **{"name": "b", "arg": "b,seed=1", "seed": 1, "workdir": "b-s1"},
    "overrides": {"lr": "0.1", "loss": "a b"},
    **{"cell": None, "candidate": None},
  }
  # Once more: what is done is left alone, what failed is tried again.
  (out / "no_memory").touch()
  with pytest.raises(SystemExit):
    _main(made, "--set", "lr=0.1", "--set", "loss=a b")
  assert "b-s1  failed: ended by signal 9 (" in capsys.readouterr().out
  (out / "no_memory").unlink()
  (out / "mended").touch()
  (out / "calls").unlink()
  _main(made, "--set", "lr=0.1", "--set", "loss=a b")
  assert _calls(made) == [f"b,seed={seed} {fields}" for seed in (0, 1)]
  text = capsys.readouterr().out
  assert "6 arms, 4 of them done" in text
  assert text.rstrip().endswith("6 done")
  with pytest.raises(ValueError, match=r"--set seed=5: all seeds would be the"):
    _main(made, "--set", "seed=5")
  # An arm that began is kept to its settings, a folder to its config.
  with pytest.raises(
    ValueError, match=r"a-s0 started with a,seed=0 {'lr': '0.1"
  ):
    _main(made, "--set", "lr=0.2")
  other = pathlib.Path(made[0]).with_name("other.py")
  other.write_text(CONFIG)
  with pytest.raises(
    ValueError, match=r"holds a sweep of .*config\.py\. Give an"
  ):
    _main((str(other), made[1]))
  with pytest.raises(SystemExit):
    _main((made[0], "gs://bucket/out"))
  assert "gs://bucket/out is an address; mount" in capsys.readouterr().err
  moved = pathlib.Path(made[0]).parent / "moved/config.py"
  moved.parent.mkdir()
  pathlib.Path(made[0]).rename(moved)
  with pytest.raises(ValueError, match=r"holds a sweep of .*config\.py\. Give"):
    _main((str(other), made[1]))
  _main((str(moved), made[1]), "--set", "lr=0.1", "--set", "loss=a b")
  assert arms.read_index(made[1])[0] == str(moved)


def test_a_file_system_without_locks(made, monkeypatch, capsys):
  def flock(*unused):
    raise OSError(38, "Function not implemented")

  monkeypatch.setattr(sweep.fcntl, "flock", flock)
  _main(made, "--select", "a", "--seeds", "1")
  assert _calls(made) == ["a,seed=0 []"]
  assert "no locks here ([Errno 38]" in capsys.readouterr().err


def test_some_of_the_arms(made, capsys):
  _main(made, "--select", "a", "--seeds", "1")
  assert _calls(made) == ["a,seed=0 []"]
  _main(made, "--select", "[ac]-s*", "--seeds", "3")
  assert len(_calls(made)) == 6
  _, found = arms.read_index(made[1])
  assert len(found) == 6
  assert all(arm.done for arm in found.values())
  # An arm whose folder cannot be made stops no other.
  pathlib.Path(made[1], "a-s3").write_text("a file")
  with pytest.raises(SystemExit):
    _main(made, "--seeds", "4", "--select", "[ac]-s3")
  assert _calls(made)[6:] == ["c,seed=3 []"]
  assert "a-s3 failed: [Errno 17] File exists" in capsys.readouterr().out


def test_what_runs_nothing(made, capsys, monkeypatch):
  monkeypatch.setattr(arms, "TRAINER", ("-m", "dpn.trainers.train"))
  out = pathlib.Path(made[1])
  _main(made, "--dry_run")
  assert not out.exists()
  assert "b-s1  not started  b,seed=1\n" in capsys.readouterr().out
  (out / "a-s0").mkdir(parents=True)
  (out / "a-s0" / "done.json").touch()
  _main(made, "--print_commands", "--set", "loss=it's")
  lines = capsys.readouterr().out.splitlines()
  assert len(lines) == 5  # a-s0 is done
  shown = subprocess.run(
    ["bash", "-c", f"printf '%s\\n' {lines[0]}"],
    capture_output=True,
    text=True,
    check=True,
  )
  assert shown.stdout.endswith(f"\n{out}/a-s1\n--config.loss=it's\n")
  _main(made, "--slurm", "--jobs", "4")
  script = capsys.readouterr().out
  assert "#SBATCH --array=0-4%4\n" in script
  subprocess.run(["bash", "-n"], input=script, text=True, check=True)
  assert _calls(made) == []


def _wait_for(path):
  end = time.monotonic() + 60
  while not path.exists():
    assert time.monotonic() < end, path
    time.sleep(0.05)


def test_stopping_saves_and_a_second_sweep_is_refused(made, tmp_path):
  out = pathlib.Path(made[1])
  out.mkdir()
  (out / "slow").touch()
  code = (
    "from dpn.scripts import sweep; from dpn.scripts.jobs import arms;"
    "import signal, sys;"
    # Whoever started the tests may have them ignore Ctrl-C.
    "signal.signal(signal.SIGINT, signal.default_int_handler);"
    "arms.TRAINER = ('-c', sys.argv[1])"
    f"; sweep.main(['--config', {made[0]!r}, '--out', {made[1]!r}, '--select', "
    "'c'])"
  )
  with open(tmp_path / "output", "w") as output:
    process = subprocess.Popen(
      [sys.executable, "-c", code, TRAINER], cwd=ROOT, stdout=output
    )
  _wait_for(out / "c-s0" / "waiting")
  with pytest.raises(ValueError, match="Another sweep is using"):
    _main(made)
  process.send_signal(signal.SIGINT)
  assert process.wait(60) == 130
  assert (out / "c-s0" / "saved").exists()
  text = (tmp_path / "output").read_text()
  said = "c-s0  stopped; run the same command to resume\nc-s1  not run\n"
  assert said in text
  (out / "slow").unlink()
  _main(made, "--select", "c")
  assert (out / "c-s1" / "done.json").exists()


@pytest.mark.parametrize(
  ("more", "message"),
  [
    (("--select", "d"), "Unknown arm in --select: 'd'.*Known: a, b, c"),
    (("--set", "lrr=3"), "Arm a-s0: Unknown field 'lrr'. Did you mean 'lr'"),
    (
      ("--set", "num_classes=2", "--set", "model.no=3"),
      "Arm a-s0: Unknown model option 'no'",
    ),
  ],
)
def test_wrong_arguments(made, more, message):
  with pytest.raises(ValueError, match=message):
    _main(made, *more)
  pathlib.Path(made[1]).mkdir()
  pathlib.Path(made[1], "config.json").write_text("{}")
  with pytest.raises(ValueError, match="out is the folder of a run"):
    _main(made)


def test_numbers_start_at_one(made, capsys):
  for flag in ("--seeds", "--jobs"):
    with pytest.raises(SystemExit):
      _main(made, flag, "0")
    assert f"argument {flag}: expected 1 or more" in capsys.readouterr().err


@pytest.mark.parametrize(
  ("old", "new", "message"),
  [
    ("def sweep", "def swept", "has no function sweep"),
    ('"seed": seed}', '"seed": 7}', "its config has seed 0, its entry in.* 7"),
    ('("a", "b", "c")', "()", r"sweep\(''\) lists no arm"),
    ('("a", "b", "c")', '("a/b",)', "'a/b' cannot name a folder"),
    ('("a", "b", "c")', '("wrong",)', "Arm wrong-s0: no such width"),
    ('("a", "b", "c")', '("a", "b", "a")', "more than one run of a-s0, a-s1"),
    ('"seed": seed}', '"sede": seed}', r"got \['name', 'arg', 'sede'\]"),
  ],
)
def test_wrong_sweeps(made, old, new, message):
  assert old in CONFIG
  pathlib.Path(made[0]).write_text(CONFIG.replace(old, new))
  with pytest.raises(ValueError, match=message):
    _main(made)
  with pytest.raises(FileNotFoundError, match=r"nope\.py"):
    _main(("nope.py", made[1]))


def test_the_command_is_the_trainers():
  digits = str(ROOT / "configs" / "digits.py")
  with pytest.raises(
    ValueError, match=r"Arm dpm-s0: .*'dpm'. Did you mean 'dpn'"
  ):
    arms.find(digits, "stems=dpm", "runs")
  [arm] = arms.find(digits, "stems=dpn,runlocal", "runs")
  command = arm.command("configs/digits.py")
  assert command == [
    *("-m", "dpn.trainers.train", "--config"),
    "configs/digits.py:stem_ln=dpn,epochs=40,runlocal=True,seed=0",
    *("--workdir", os.path.join("runs", "dpn-s0")),
  ]


def test_a_started_arm_keeps_its_settings_in_any_order(tmp_path, capsys):
  digits, out = str(ROOT / "configs" / "digits.py"), str(tmp_path)
  [arm] = arms.find(digits, "stems=dpn", out)
  arm = dataclasses.replace(arm, overrides={"model.patch_size": (4, 4)})
  (tmp_path / "dpn-s0").mkdir()
  (tmp_path / "dpn-s0" / "config.json").write_text("{}")
  before = dataclasses.replace(arm, arg="seed=0,stem_ln=dpn")
  arms.write_index(digits, "", out, [before])
  arms.write_index(digits, "", out, [arm])
  other = dataclasses.replace(arm, arg="seed=0,stem_ln=none")
  with pytest.raises(ValueError, match="dpn-s0 started with stem_ln=dpn,epoc"):
    arms.write_index(digits, "", out, [other])
  (tmp_path / "sweep.json").unlink()  # as of a run that no sweep began
  (tmp_path / "dpn-s0" / "done.json").touch()
  found = arms.find(digits, "stems=dpn", out)
  with pytest.raises(ValueError, match="dpn-s0 is done, but began with"):
    arms.write_index(digits, "", out, found)
  (tmp_path / "dpn-s0" / "done.json").unlink()
  arms.write_index(digits, "", out, found)
  (tmp_path / "dpn-s0" / "done.json").touch()
  arms.write_index(digits, "", out, found)
  assert "Warning: the run in " in capsys.readouterr().err


def test_runs_share_a_machine(monkeypatch):
  for name in (*local._MEMORY, "OPENBLAS_NUM_THREADS"):
    monkeypatch.delenv(name, raising=False)
  assert local.sharing(1) == {}
  found = local.sharing(3)
  assert found["XLA_CLIENT_MEM_FRACTION"] == "0.300"
  assert found["OPENBLAS_NUM_THREADS"] == "1"
  monkeypatch.setenv("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.2")
  monkeypatch.setenv("OPENBLAS_NUM_THREADS", "4")
  assert local.sharing(3) == {}
