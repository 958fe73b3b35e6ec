"""Measures what this project claims about GPUs; see scripts/gpu_report.sh.

  python -m benchmarks.gpu_report --out runs/gpu [--only step attention]

Each part runs its benchmarks in separate processes and keeps their JSON and
logs in OUT. Results that are already there are not measured again.
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
from typing import Any

from benchmarks import gpu_page, norms, step, step_peers
from dpn.scripts.results import output
from dpn.trainers import workdir

BATCHES = {
  "B/16": (256, 512, 128),  # the likely best ones first
  "S/16": (256, 512),
  "L/16": (64, 128),
  "Ti/16": (512, 1024),
}
FULL = step_peers.Setting("B/16", dtype="bfloat16")
TINY = step_peers.Setting("mu/16", 32, 4)
MOST_SECS = 300  # for one command
NORMS_AT_ONCE = 6


class Report:
  """Runs benchmarks and keeps their results, while there is time.

  Attributes:
    args: the command line's arguments.
    setting: the model, batch and dtype that most parts measure.
    batches: the batch sizes to try, by variant.
    failures: what could not be measured, and why.
    about: what results may depend on; stored with each of them.
  """

  def __init__(self, args: argparse.Namespace):
    self.args, self.failures = args, []
    self.out = pathlib.Path(args.out)
    self._deadline = time.monotonic() + 60 * args.minutes
    root = pathlib.Path(__file__).parents[1]
    code = workdir.code_checksum([root / "scripts", root / "benchmarks"])
    self.about = {"tiny": args.tiny, "code": code}
    self.setting, self.batches = FULL, BATCHES
    if args.tiny:
      self.setting, self.batches = TINY, {TINY.variant: (TINY.batch_size,)}

  def file(self, name: str) -> pathlib.Path:
    return self.out / f"{name}.json"

  def kept(self, name: str) -> Any:
    """Returns a stored result; raises ValueError if --tiny has changed."""
    kept = json.loads(self.file(name).read_text())
    if kept["about"]["tiny"] != self.args.tiny:
      raise ValueError(
        f"{self.out} has results with --tiny={kept['about']['tiny']}, now it "
        f"is {self.args.tiny}. Remove it, or give another --out."
      )
    return kept["results"]

  def run(
    self,
    name: str,
    module: str,
    *words: str,
    wrong: Callable[[Any], str] = lambda found: "",
  ) -> Any:
    """Returns what a benchmark measures, and keeps it in OUT/<name>.json.

    Returns None on failure: `failures` lists it, and the next report retries.

    Args:
      name: of the result.
      module: of the benchmark, which must have the option --json.
      *words: the benchmark's arguments.
      wrong: returns why a result is a failure, "" if it is not one.
    """
    if self.file(name).exists():
      return self.kept(name)
    partial = self.out / f"{name}.partial"
    partial.unlink(missing_ok=True)
    left = min(self._deadline - time.monotonic(), MOST_SECS)
    why = f"not run: {self.args.minutes} minutes are over."
    if left > 1:
      command = [sys.executable, "-m", module, *words, "--json", str(partial)]
      why = self._call(command, self.out / f"{name}.log", left)
    if partial.exists():
      found = json.loads(partial.read_text())
      why = wrong(found)
    if why:
      self.failures.append(f"{name} failed: {why}")
      output.say(f"{self.failures[-1]} (the others go on)")
      return None
    partial.write_text(json.dumps({"about": self.about, "results": found}))
    partial.replace(self.file(name))
    return found

  def _call(self, command, log, secs) -> str:
    """Runs a command, ends all that it started, and returns how it ended."""
    output.say(f"{log.stem} runs; its output: {log}")
    env = {"JAX_COMPILATION_CACHE_DIR": str((self.out / "compiled").resolve())}
    if not self.args.tiny:  # else XLA may take the CPU, and our step all GPUs
      env |= {"JAX_PLATFORMS": "cuda,cpu", "CUDA_VISIBLE_DEVICES": "0"}
    with open(log, "w") as f:
      f.write(f"{shlex.join(command)}\n")
      f.flush()
      kw = {"stdout": f, "stderr": subprocess.STDOUT, "start_new_session": True}
      with subprocess.Popen(command, env=env | os.environ, **kw) as process:
        try:
          process.wait(secs)
        except subprocess.TimeoutExpired:
          return f"stopped: the time was over ({log})."
        finally:
          with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # and its own workers
    last = log.read_text(errors="replace").strip().splitlines()[-1]
    return f"{last} ({log})"

  def step(self, part: str, setting: step_peers.Setting, who: str, **lists):
    """Measures the training steps of `who` with benchmarks.step.

    `lists` replace fields of the setting by values separated by commas.
    """
    args = self.args
    fields = {**dataclasses.asdict(setting), **lists}
    words = [f"--{key}={value}" for key, value in fields.items()]
    words += ["--steps=2"] if args.tiny else ["--steps=20", "--secs=5"]
    words += ["--rounds=1", "--only", who, f"--big_vision={args.big_vision}"]
    if args.torch_python:
      words.append(f"--torch_python={args.torch_python}")

    def wrong(found):
      every = [f for row in found.values() for f in row["figures"].values()]
      if any("img_per_sec" in figures for figures in every):
        return ""
      return every[0]["error"] if every else f"{who} is not installed"

    name = gpu_page.part_name(part, setting)
    self.run(name, "benchmarks.step", *words, wrong=wrong)

  def settings(self, variant: str = "") -> list[step_peers.Setting]:
    """Returns the settings of a variant to try, of the main one by default."""
    variant = variant or self.setting.variant
    return [
      dataclasses.replace(self.setting, variant=variant, batch_size=size)
      for size in self.batches[variant]
    ]

  def best(self, variant: str = "") -> step_peers.Setting:
    """Returns the fastest measured setting, of the main model by default."""
    rates = {}
    for setting in self.settings(variant):
      name = gpu_page.part_name("step", setting)
      if self.file(name).exists():
        figures = self.kept(name)[step.name_of(setting)]["figures"]
        rates[setting] = figures[step.OURS]["img_per_sec"]
    if not rates:
      raise RuntimeError("needs the part `step`, which has no result.")
    return max(rates, key=rates.get)

  def norms(self, name: str, setting: step_peers.Setting, arms, *more: str):
    """Measures norms with benchmarks.norms."""
    words = [
      f"--variant={setting.variant}",
      f"--image_size={setting.resolution}",
      f"--batch_size={setting.batch_size}",
      f"--dtype={setting.dtype}",
      f"--steps={2 if self.args.tiny else 20}",
    ]
    self.run(name, "benchmarks.norms", *words, *more, "--arms", *arms)


def versions(report: Report):
  """Records the software and the device, which may have changed meanwhile."""
  report.file("versions").unlink(missing_ok=True)
  found = report.run("versions", "benchmarks.gpu_parts", "versions") or {}
  report.about |= found
  if found and not report.args.tiny and found["platform"] != "gpu":
    sys.exit(
      f"Error: JAX found {found['device']!r} and no GPU. Install "
      "'.[cuda12]' or '.[cuda13]' and unset JAX_PLATFORMS; --tiny is for CPUs."
    )


def numbers(report: Report):
  """Checks gradients against those of XLA's attention, and of a CPU."""

  def wrong(found):
    bad = {k: row for k, row in found.items() if not row["met"]}
    said = lambda row: row.get("error") or f"{row['found']:.1e} apart"
    return "; ".join(f"{name}: {said(row)}" for name, row in bad.items())

  setting = json.dumps(dataclasses.asdict(report.setting))
  words = ["benchmarks.gpu_parts", "numbers", setting]
  report.run("numbers", *words, wrong=wrong)


def steps(report: Report):
  """Measures our step at several batch sizes, in bfloat16."""
  for setting in report.settings():
    report.step("step", setting, step.OURS)


def stem(report: Report):
  """Times Dual PatchNorm in turn with a plain ViT, and with that ViT again."""
  setting = report.best()
  as_step = ["--pool_type=tok", *["--unrolled"] * (not setting.scan)]
  name = gpu_page.part_name("stem", setting)
  report.norms(name, setting, [gpu_page.DPN], *as_step)


def peers(report: Report):
  """Measures timm's step at all batch sizes, big_vision's at our best one."""
  settings = report.settings()
  if report.args.tiny:  # timm has no model that small
    settings = [dataclasses.replace(TINY, variant="Ti/16")]
  for setting in settings:
    report.step(f"peers_{step.TIMM}", setting, step.TIMM)
  if report.args.big_vision and not report.args.tiny:
    report.step(f"peers_{step.BIG_VISION}", report.best(), step.BIG_VISION)


def sizes(report: Report):
  """Times other models' steps, and timm's at the batch size that suits ours."""
  for variant in [*report.batches][1:]:
    for setting in report.settings(variant):
      report.step("step", setting, step.OURS)
    with contextlib.suppress(RuntimeError):  # none of them could be measured
      report.step(f"peers_{step.TIMM}", report.best(variant), step.TIMM)


def attention(report: Report):
  """Measures our best step with attention by XLA and by cuDNN."""
  report.step("attention", report.best(), step.OURS, attn_impl="xla,cudnn")


def all_norms(report: Report):
  """Measures each normalizer's cost in time and memory, a few at a time."""
  setting, arms = TINY, [gpu_page.DPN, "lape"]
  if not report.args.tiny:
    setting = dataclasses.replace(FULL, variant="S/16", batch_size=128)
    left_out = (norms.BASELINE, *norms.UNEQUAL)
    arms = [arm for arm in norms.ARMS if arm not in left_out]
  for start in range(0, len(arms), NORMS_AT_ONCE):
    group = arms[start : start + NORMS_AT_ONCE]
    report.norms(f"norms_{start:02}", setting, group)


def loading(report: Report):
  """Measures how many images a second this machine's cores can prepare."""
  words = ["--tasks=crop", "--repeats=1", *["--secs=1"] * report.args.tiny]
  report.run("loading", "benchmarks.input", *words)


# In the order in which they run: what matters most comes first.
PARTS: dict[str, Callable[[Report], None]] = {
  "versions": versions,
  "numbers": numbers,
  "step": steps,
  "stem": stem,
  "peers": peers,
  "attention": attention,
  "loading": loading,
  "sizes": sizes,
  "norms": all_norms,
}


def main(argv: Sequence[str] | None = None):
  parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
  add = parser.add_argument
  add("--out", help="folder of the results (runs/gpu, or runs/gpu_tiny)")
  add("--tiny", action="store_true", help="a trial in small, for any CPU")
  add("--minutes", type=float, default=25, help="time limit of the whole (25)")
  add("--only", nargs="+", choices=PARTS, default=list(PARTS), metavar="PART",
      help=", ".join(PARTS))  # fmt: skip
  add("--torch_python", default="", help="a Python with torch and timm")
  add("--big_vision", default="", help="folder of a checkout")
  args = parser.parse_args(argv)
  args.out = args.out or ("runs/gpu_tiny" if args.tiny else "runs/gpu")
  report = Report(args)
  with output.errors_in_a_line(), output.ensure_folder(args.out):
    for name in args.only:
      try:
        PARTS[name](report)
      except RuntimeError as e:
        report.failures.append(f"{name} failed: {e}")
      content = gpu_page.page(report.out, report.setting, report.failures)
      (report.out / "report.html").write_text(content)
    output.say(f"Wrote {report.out / 'report.html'}")
  sys.exit(bool(report.failures))


if __name__ == "__main__":
  main()
