"""Measures what this project claims about GPUs; see scripts/gpu_report.sh.

  python -m scripts.gpu_report --out runs/gpu [--only step attention]

Every part is one or more of the benchmarks, as processes of their own. Their
JSON and logs lie in OUT; what is there already is not measured again.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import pathlib
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

from dpn.scripts import bench_step
from dpn.scripts.bench import gpu_page, harness, step_peers
from dpn.scripts.results import output
from dpn.trainers import workdir

BATCHES = {
  "Ti/16": (512, 1024),
  "S/16": (256, 512),
  "B/16": (128, 256, 512),
  "L/16": (64, 128),
}
MAIN = "B/16"
FULL = step_peers.Setting(dtype="bfloat16")
TINY = step_peers.Setting("mu/16", 32, 4)
VERSIONS = """
import importlib.metadata, json, platform, sys
import jax
names = ("jax", "jaxlib", "flax", "optax")
found = {name: importlib.metadata.version(name) for name in names}
device = jax.devices()[0]
found |= {"device": device.device_kind, "platform": device.platform}
found |= {"devices": jax.device_count(), "python": platform.python_version()}
json.dump(found, open(sys.argv[sys.argv.index("--json") + 1], "w"))
"""


class Report:
  """Where results go, and how much time is left.

  Attributes:
    args: of the command line.
    setting: of the model that is measured in most parts.
    failures: by part, what went wrong.
  """

  def __init__(self, args: argparse.Namespace):
    self.args, self.failures = args, {}
    self.out = pathlib.Path(args.out)
    self._deadline = time.monotonic() + 60 * args.minutes
    self.setting = TINY
    if not args.tiny:
      self.setting = dataclasses.replace(FULL, variant=MAIN)

  @property
  def sizes(self) -> dict[str, Sequence[int]]:
    """Returns the batch sizes to try, by variant."""
    return {TINY.variant: (TINY.batch_size,)} if self.args.tiny else BATCHES

  def claim(self):
    """Makes OUT this report's, so that it holds nothing else.

    Raises:
      ValueError: there is a report in it that was a trial, or of other code.
    """
    path = self.out / "report.json"
    code = workdir.code_checksum(["scripts"])
    ours = {"tiny": self.args.tiny, "code": code}
    there = "nothing that says so"
    if path.exists():
      there = json.loads(path.read_text())
    if there != ours and any(self.out.glob("*.json")):
      raise ValueError(
        f"{self.out} holds the results of {there}, and this report is of "
        f"{ours}. Remove it, or give another --out."
      )
    harness.write_json(str(path), ours)

  def run(self, name: str, *command) -> dict:
    """Returns the JSON of `python -m` command; kept in OUT/<name>.json.

    Raises:
      RuntimeError: it failed, or there is no time left; says why.
    """
    path, log = self.out / f"{name}.json", self.out / f"{name}.log"
    if not path.exists():
      partial = path.with_suffix(".partial")
      words = [sys.executable, *map(str, command), "--json", str(partial)]
      left = self._deadline - time.monotonic()
      if left < 1:
        raise RuntimeError(f"not run: {self.args.minutes} minutes are over.")
      output.say(f"{name} runs; its output: {log}")
      code = _call(words, log, left)
      if not partial.exists():
        lines = log.read_text(errors="replace").strip().splitlines()
        last = lines[-1] if lines else f"exit status {code}"
        raise RuntimeError(f"{last} ({log})")
      os.replace(partial, path)
    return json.loads(path.read_text())

  def step(
    self,
    name: str,
    setting: step_peers.Setting,
    only: Sequence[str] = (bench_step.OURS,),
    rounds: int = 1,
    **lists,
  ):
    """Measures training steps with scripts.bench_step.

    Args:
      name: of the result.
      setting: what is not in the lists.
      only: whom to measure.
      rounds: how often, in turn.
      **lists: tuples of values of the setting's fields.
    """
    args = self.args
    fields = {**dataclasses.asdict(setting), **lists}
    as_text = lambda v: ",".join(map(str, v if isinstance(v, tuple) else [v]))
    words = [f"--{key}={as_text(value)}" for key, value in fields.items()]
    words += ["--rounds", rounds, "--steps", 2 if args.tiny else 20]
    words += ["--only", *only, f"--big_vision={args.big_vision}"]
    if args.torch_python:
      words.append(f"--torch_python={args.torch_python}")
    found = self.run(name, "-m", "dpn.scripts.bench_step", *words)
    every = [f for part in found.values() for f in part["figures"].values()]
    if not any("img_per_sec" in figures for figures in every):
      (self.out / f"{name}.json").unlink()  # to be tried again
      missing = f"{', '.join(only)} cannot be measured here: not installed"
      errors = [figures["error"] for figures in every]
      raise RuntimeError(errors[0] if errors else missing)

  def best(self, variant: str) -> step_peers.Setting:
    """Returns the fastest setting of a variant that has been measured."""
    rates, name = {}, _search(variant)
    if not (self.out / f"{name}.json").exists():
      raise RuntimeError("needs the part `step`, of which nothing is there.")
    for batch_size in self.sizes[variant]:
      setting = dataclasses.replace(
        self.setting, variant=variant, batch_size=batch_size
      )
      rows = self.run(name)
      figures = rows[bench_step.name_of(setting)]["figures"][bench_step.OURS]
      rates[setting] = figures.get("img_per_sec", 0)
    return max(rates, key=rates.get)


def _call(words, log, secs):
  """Runs a command with all that it starts, and returns its exit status."""
  with open(log, "w") as f:
    f.write(f"{shlex.join(words)}\n")
    f.flush()
    kw = {"stdout": f, "stderr": subprocess.STDOUT, "start_new_session": True}
    with subprocess.Popen(words, **kw) as process:
      try:
        return process.wait(secs)
      except subprocess.TimeoutExpired as e:
        raise RuntimeError(f"stopped: the time was over ({log}).") from e
      finally:
        with contextlib.suppress(ProcessLookupError):
          os.killpg(process.pid, signal.SIGKILL)  # and its own workers


def _search(variant):
  return f"step_{variant.replace('/', '')}"


def environment(report: Report):
  """Versions and device."""
  report.run("environment", "-c", VERSIONS)


def step(report: Report):
  """Our step at several batch sizes, in bfloat16."""
  for variant, sizes in report.sizes.items():
    setting = dataclasses.replace(report.setting, variant=variant)
    report.step(_search(variant), setting, batch_size=tuple(sizes))


def stem(report: Report):
  """What Dual PatchNorm costs, in turn with a plain ViT."""
  setting = report.best(report.setting.variant)
  rounds = 1 if report.args.tiny else 3
  report.step("stem", setting, rounds=rounds, stem_ln=("none", "dpn"))


def peers(report: Report):
  """Others' steps (timm, big_vision), at the batch sizes that suit us best."""
  for variant in report.sizes:
    who = [bench_step.TIMM]
    if report.args.big_vision and variant == report.setting.variant:
      who += [bench_step.BIG_VISION]
    name = f"peers_{variant.replace('/', '')}"
    report.step(name, report.best(variant), who)


def attention(report: Report):
  """Attention by XLA and by cuDNN."""
  setting = report.best(report.setting.variant)
  kinds = ("xla", "cudnn")
  report.step("attention", setting, attn_impl=kinds)


def memory(report: Report):
  """scripts.estimate_memory for the model whose peak `step` has measured."""
  setting = report.best(report.setting.variant)
  model = {
    "variant": setting.variant,
    "stem_ln": setting.stem_ln,
    "dtype_mm": setting.dtype,
    "dropout": 0.0,
  }
  report.run(
    "memory",
    "-m",
    "dpn.scripts.estimate_memory",
    "--config=configs/augreg_i1k.py:variant=B/16",
    f"--config.input.batch_size={setting.batch_size}",
    *(f"--config.model.{key}={value}" for key, value in model.items()),
    *(["--config.input.pp=" + _pp(setting.resolution)]),
  )


def _pp(resolution):
  return (
    f"decode|resize({resolution})|value_range(-1, 1)"
    '|onehot(1000, key="label", key_result="labels")|keep("image", "labels")'
  )


def norms(report: Report):
  """Every normalizer's cost in time and memory."""
  words = ["--variant=S/16", "--image_size=224", "--batch_size=128"]
  words += ["--dtype=bfloat16"]
  if report.args.tiny:
    words = ["--variant=mu/16", "--image_size=32", "--batch_size=4"]
    words += ["--steps=2", "--arms", "stem_ln=dpn", "dtn"]
  report.run("norms", "-m", "dpn.scripts.bench_norms", *words)


def faults(report: Report):
  """Two runs end with the same bits, also when one is stopped or killed."""
  words = ["--only=sigterm"]
  words += [] if report.args.tiny else ["--only=sigkill", "--kills=2"]
  outcomes = report.run("faults", "-m", "dpn.scripts.chaos", *words)
  lost = [f"{name} {o}" for name, o in outcomes.items() if o != "survived"]
  if lost:
    (report.out / "faults.json").unlink()  # to be tried again
    raise RuntimeError("; ".join(lost))


def loading(report: Report):
  """How many images a second this machine's cores can prepare."""
  words = ["--tasks=crop", "--repeats=1"]
  words += ["--secs=1"] if report.args.tiny else []
  report.run("loading", "-m", "dpn.scripts.bench_input", *words)


# In the order in which they run: what matters most comes first.
PARTS: dict[str, Callable[[Report], None]] = {
  part.__name__: part
  for part in (
    *(environment, step, stem, peers, attention),
    *(memory, norms, faults, loading),
  )
}


def main(argv: Sequence[str] | None = None):
  parser = argparse.ArgumentParser(
    prog="python -m scripts.gpu_report", description=__doc__.partition("\n")[0]
  )
  add = parser.add_argument
  add("--out", help="folder of the results (runs/gpu, or runs/gpu_tiny)")
  add("--tiny", action="store_true", help="a trial in small, for any CPU")
  add("--minutes", type=float, default=25, help="what is left then, is not run")
  add("--only", nargs="+", choices=PARTS, default=list(PARTS), metavar="PART")
  add("--torch_python", default="", help="a Python with torch and timm")
  add("--big_vision", default="", help="folder of a checkout")
  args = parser.parse_args(argv)
  args.out = args.out or ("runs/gpu_tiny" if args.tiny else "runs/gpu")
  report = Report(args)
  if not args.tiny:  # or scripts.chaos would take the CPU
    os.environ.setdefault("JAX_PLATFORMS", "cuda,cpu")
  with output.errors_in_a_line(), output.made(args.out):
    report.claim()
    for name in args.only:
      try:
        PARTS[name](report)
      except (RuntimeError, OSError, LookupError, ValueError) as e:
        report.failures[name] = str(e)
        output.say(f"{name} FAILED, the others go on: {e}")
    harness.write_json(str(report.out / "failures.json"), report.failures)
    content = gpu_page.page(report.out, report.setting, report.failures)
    output.write(str(report.out / "report.html"), content)
  sys.exit(bool(report.failures))


if __name__ == "__main__":
  main()
