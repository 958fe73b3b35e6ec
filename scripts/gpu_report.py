"""Measures what this project claims about GPUs; see scripts/gpu_report.sh.

  python -m scripts.gpu_report --out runs/gpu [--only step attention]

Every part is one or more of the benchmarks, as processes of their own. Their
JSON and logs lie in OUT; what is there already is not measured again.
"""

import argparse
import contextlib
import dataclasses
import functools
import json
import os
import pathlib
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from dpn.scripts import bench_norms, bench_step
from dpn.scripts.bench import gpu_page, harness, step_peers
from dpn.scripts.results import output
from dpn.trainers import workdir

BATCHES = {
  "B/16": (256, 128, 512),
  "S/16": (256, 512),
  "L/16": (64, 128),
  "Ti/16": (512, 1024),
}
MAIN = "B/16"
FULL = step_peers.Setting(dtype="bfloat16")
TINY = step_peers.Setting("mu/16", 32, 4)
MOST_SECS = 300  # for one command
NORMS_AT_ONCE = 6


class Report:
  """Where results go, and how much time is left.

  Attributes:
    args: of the command line.
    setting: of the model that is measured in most parts.
    failures: by part, what went wrong.
    about: what results may depend on; kept with each.
  """

  def __init__(self, args: argparse.Namespace):
    self.args, self.failures = args, {}
    self.out = pathlib.Path(args.out)
    self._deadline = time.monotonic() + 60 * args.minutes
    self.about = {"code": workdir.code_checksum(["scripts"])}
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
      ValueError: what it holds is a trial and this is none, or the reverse.
    """
    path = self.out / "report.json"
    ours, there = {"tiny": self.args.tiny}, "nothing that says so"
    if path.exists():
      there = json.loads(path.read_text())
    if there != ours and any(self.out.glob("*.json")):
      raise ValueError(
        f"{self.out} holds the results of {there}, and this report is of "
        f"{ours}. Remove it, or give another --out."
      )
    harness.write_json(str(path), ours)

  def environment(self) -> dict[str, str]:
    """Returns the environment of the parts' processes."""
    ours = {"JAX_COMPILATION_CACHE_DIR": str((self.out / "compiled").resolve())}
    if not self.args.tiny:  # or XLA would take the CPU
      ours["JAX_PLATFORMS"] = "cuda,cpu"
      ours["CUDA_VISIBLE_DEVICES"] = "0"  # as peers have one
    return ours | os.environ

  def file(self, name: str) -> pathlib.Path:
    return self.out / f"{name}.json"

  def run(self, name: str, *command) -> Any:
    """Returns the JSON of `python -m` command; kept in OUT/<name>.json.

    Raises:
      RuntimeError: it failed, or there is no time left; says why.
    """
    path, log = self.file(name), self.out / f"{name}.log"
    if not path.exists():
      partial = path.with_suffix(".partial")
      words = [sys.executable, "-m", *map(str, command), "--json", str(partial)]
      left = min(self._deadline - time.monotonic(), MOST_SECS)
      if left < 1:
        raise RuntimeError(f"not run: {self.args.minutes} minutes are over.")
      partial.unlink(missing_ok=True)
      output.say(f"{name} runs; its output: {log}")
      code = _call(words, log, left, self.environment())
      if not partial.exists():
        lines = log.read_text(errors="replace").strip().splitlines()
        last = lines[-1] if lines else f"exit status {code}"
        raise RuntimeError(f"{last} ({log})")
      found = json.loads(partial.read_text())
      partial.write_text(json.dumps({"about": self.about, "results": found}))
      os.replace(partial, path)
    return json.loads(path.read_text())["results"]

  def step(
    self,
    name: str,
    setting: step_peers.Setting,
    only: Sequence[str] = (bench_step.OURS,),
    **lists,
  ):
    """Measures training steps with scripts.bench_step.

    Args:
      name: of the result.
      setting: what is not in the lists.
      only: whom to measure.
      **lists: tuples of values of the setting's fields.
    """
    args = self.args
    fields = {**dataclasses.asdict(setting), **lists}
    as_text = lambda v: ",".join(map(str, v if isinstance(v, tuple) else [v]))
    words = [f"--{key}={as_text(value)}" for key, value in fields.items()]
    length = ["--steps=2"] if args.tiny else ["--steps=20", "--secs=5"]
    words += ["--rounds=1", *length]
    words += ["--only", *only, f"--big_vision={args.big_vision}"]
    if args.torch_python:
      words.append(f"--torch_python={args.torch_python}")
    found = self.run(name, "dpn.scripts.bench_step", *words)
    every = [f for part in found.values() for f in part["figures"].values()]
    if not any("img_per_sec" in figures for figures in every):
      self.file(name).unlink()  # to be tried again
      missing = f"{', '.join(only)} cannot be measured here: not installed"
      errors = [figures["error"] for figures in every]
      raise RuntimeError(errors[0] if errors else missing)

  def best(self, variant: str) -> step_peers.Setting:
    """Returns the fastest setting of a variant that has been measured."""
    rates = {}
    for setting in self.settings(variant):
      if self.file(gpu_page.part_name("step", setting)).exists():
        rows = self.run(gpu_page.part_name("step", setting))
        figures = rows[bench_step.name_of(setting)]["figures"]
        rates[setting] = figures[bench_step.OURS]["img_per_sec"]
    if not rates:
      raise RuntimeError("needs the part `step`, of which nothing is there.")
    return max(rates, key=rates.get)

  def shown(self) -> step_peers.Setting:
    """Returns the best setting of the main model, any before there is one."""
    try:
      return self.best(self.setting.variant)
    except RuntimeError:
      return self.setting

  def settings(self, variant: str) -> list[step_peers.Setting]:
    """Returns the settings to try, the likely best one first."""
    return [
      dataclasses.replace(self.setting, variant=variant, batch_size=size)
      for size in self.sizes[variant]
    ]


def _call(words, log, secs, env):
  """Runs a command with all that it starts, and returns its exit status."""
  with open(log, "w") as f:
    f.write(f"{shlex.join(words)}\n")
    f.flush()
    kw = {"stdout": f, "stderr": subprocess.STDOUT, "start_new_session": True}
    with subprocess.Popen(words, env=env, **kw) as process:
      try:
        return process.wait(secs)
      except subprocess.TimeoutExpired as e:
        raise RuntimeError(f"stopped: the time was over ({log}).") from e
      finally:
        with contextlib.suppress(ProcessLookupError):
          os.killpg(process.pid, signal.SIGKILL)  # and its own workers


def _each(measures: Iterable[Callable[[], Any]]):
  """Measures all, also if some fail.

  Raises:
    RuntimeError: says what failed.
  """
  problems = []
  for measure in measures:
    try:
      measure()
    except RuntimeError as e:
      problems.append(str(e))
  if problems:
    raise RuntimeError("; ".join(problems))


def _json(setting):
  return json.dumps(dataclasses.asdict(setting))


def versions(report: Report):
  """Of software and device: they may be others than the last time."""
  report.file("versions").unlink(missing_ok=True)
  report.about |= report.run(
    "versions", "dpn.scripts.bench.gpu_parts", "versions"
  )
  if not report.args.tiny and report.about["platform"] != "gpu":
    sys.exit(
      f"Error: JAX found {report.about['device']!r} and no GPU. Install "
      "'.[cuda12]' or '.[cuda13]' and unset JAX_PLATFORMS; --tiny is for CPUs."
    )


def numbers(report: Report):
  """Gradients are those of XLA's attention, and of a CPU."""
  words = ["dpn.scripts.bench.gpu_parts", "numbers", _json(report.setting)]
  found = report.run("numbers", *words)
  if wrong := [name for name, row in found.items() if not row["met"]]:
    report.file("numbers").unlink()  # to be tried again
    raise RuntimeError(f"too far apart: {', '.join(wrong)}.")


def step(report: Report):
  """Our step at several batch sizes, in bfloat16."""
  _steps(report, report.setting.variant)


def _steps(report, variant):
  _each(
    functools.partial(report.step, gpu_page.part_name("step", setting), setting)
    for setting in report.settings(variant)
  )


def stem(report: Report):
  """What Dual PatchNorm costs, in turn with a plain ViT and that ViT again."""
  setting = report.best(report.setting.variant)
  as_step = ["--pool_type=tok", *["--unrolled"] * (not setting.scan)]
  _norms(
    report,
    gpu_page.part_name("stem", setting),
    setting,
    ["stem_ln=dpn"],
    *as_step,
  )


def _norms(report, name, setting, arms, *more):
  words = [
    f"--variant={setting.variant}",
    f"--image_size={setting.resolution}",
    f"--batch_size={setting.batch_size}",
    f"--dtype={setting.dtype}",
    f"--steps={2 if report.args.tiny else 20}",
  ]
  words += [*more, "--arms", *arms]
  report.run(name, "dpn.scripts.bench_norms", *words)


def peers(report: Report):
  """Others' steps: timm's at all batch sizes, big_vision's at our best one."""
  variant = report.setting.variant
  if report.args.tiny:  # timm has no model as small
    _peer(report, bench_step.TIMM, dataclasses.replace(TINY, variant="Ti/16"))
    return
  settings = report.settings(variant)
  measures = [lambda s=s: _peer(report, bench_step.TIMM, s) for s in settings]
  if report.args.big_vision:
    who = bench_step.BIG_VISION
    measures.append(lambda: _peer(report, who, report.best(variant)))
  _each(measures)


def _peer(report, who, setting):
  report.step(gpu_page.part_name(f"peers_{who}", setting), setting, [who])


def sizes(report: Report):
  """Other models' steps, ours and timm's at the batch size that suits us."""
  timm = lambda variant: _peer(report, bench_step.TIMM, report.best(variant))
  _each(
    functools.partial(measure, variant)
    for variant in report.sizes
    if variant != report.setting.variant
    for measure in (functools.partial(_steps, report), timm)
  )


def attention(report: Report):
  """Attention by XLA and by cuDNN."""
  setting = report.best(report.setting.variant)
  kinds = ("xla", "cudnn")
  report.step(
    gpu_page.part_name("attention", setting), setting, attn_impl=kinds
  )


def memory(report: Report):
  """What scripts.estimate_memory says of the step that `step` has measured."""
  best = report.best(report.setting.variant)
  words = ["dpn.scripts.bench.gpu_parts", "memory", _json(best)]
  report.run(gpu_page.part_name("memory", best), *words)


def norms(report: Report):
  """Every normalizer's cost in time and memory, a few at a time."""
  setting, arms = TINY, ["stem_ln=dpn", "dtn"]
  if not report.args.tiny:
    setting = dataclasses.replace(FULL, variant="S/16", batch_size=128)
    arms = [arm for arm in bench_norms.ARMS if arm != bench_norms.BASELINE]
  starts = range(0, len(arms), NORMS_AT_ONCE)

  def measure(start):
    group = arms[start : start + NORMS_AT_ONCE]
    _norms(report, f"norms_{start:02}", setting, group)

  _each(functools.partial(measure, start) for start in starts)


def loading(report: Report):
  """How many images a second this machine's cores can prepare."""
  words = ["--tasks=crop", "--repeats=1"]
  words += ["--secs=1"] if report.args.tiny else []
  report.run("loading", "dpn.scripts.bench_input", *words)


# In the order in which they run: what matters most comes first.
PARTS: dict[str, Callable[[Report], None]] = {
  part.__name__: part
  for part in (
    *(versions, numbers, step, stem, peers, attention),
    *(memory, loading, sizes, norms),
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
  with output.errors_in_a_line(), output.ensure_folder(args.out):
    report.claim()
    for name in args.only:
      try:
        PARTS[name](report)
      except (RuntimeError, OSError, LookupError, ValueError) as e:
        report.failures[name] = str(e)
        output.say(f"{name} FAILED, the others go on: {e}")
      harness.write_json(str(report.out / "failures.json"), report.failures)
      content = gpu_page.page(report.out, report.shown(), report.failures)
      (report.out / "report.html").write_text(content)
    output.say(f"Wrote {report.out / 'report.html'}")
  sys.exit(bool(report.failures))


if __name__ == "__main__":
  main()
