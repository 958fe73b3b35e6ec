"""Compares ViT and Dual PatchNorm on digits: a table and report.html.

  python -m scripts.quickstart runs/quickstart

Reads the runs in that folder, as scripts/quickstart.sh trains them, and writes
the report beside them.
"""

import argparse
import json
import pathlib
import sys
from collections.abc import Mapping, Sequence

from scripts.results import page, plots, render, runs, stats

ARMS = {"none": "ViT (none)", "dpn": "Dual PatchNorm (dpn)"}
ACCURACY = "test/prec@1"
FEWSHOT = "fewshot/digits_5shot"
HEADER = ("arm", "runs", "test accuracy %", "5-shot accuracy %", "seconds")
# As in the paper's Figure 2, the late part of training; it has 1,000 of 93,000.
LAST_STEPS = 250
_TABLES = pathlib.Path(__file__).parent / "results" / "paper_tables.json"


def by_arm(found: Sequence[runs.Run]) -> dict[str, list[runs.Run]]:
  """Returns the runs of each arm by seed, those of `ARMS` first.

  An arm is a value of `config.model.stem_ln`.
  """
  arms = {stem: [] for stem in ARMS}
  for run in sorted(found, key=lambda run: run.config["seed"]):
    arms.setdefault(run.config["model"]["stem_ln"], []).append(run)
  return {
    stem: repetitions for stem, repetitions in arms.items() if repetitions
  }


def results(arms: Mapping[str, Sequence[runs.Run]]) -> list[tuple[str, ...]]:
  """Returns a row of `HEADER` for each arm; means are over complete runs."""
  rows = []
  for stem, repetitions in arms.items():
    done = [run for run in repetitions if run.complete]
    count = str(len(done))
    if len(done) < len(repetitions):
      count += f" of {len(repetitions)}, others incomplete"
    accuracy = stats.mean([run.final(ACCURACY) for run in done])
    fewshot = stats.mean([run.final(FEWSHOT) for run in done])
    seconds = stats.mean([run.done["seconds"] for run in done])
    rows.append(
      (
        ARMS.get(stem, stem),
        count,
        accuracy.text(scale=100, digits=1),
        fewshot.text(scale=100, digits=1),
        "–" if not done else f"{seconds.value:.0f}",
      )
    )
  return rows


def gain(arms: Mapping[str, Sequence[runs.Run]]) -> stats.Mean:
  """Returns by how much dpn is more accurate than none, in [-1, 1].

  Runs are compared seed by seed: they see the same batches in the same order.
  """
  accuracy = {
    stem: {r.seed: r.final(ACCURACY) for r in arms.get(stem, ()) if r.complete}
    for stem in ("none", "dpn")
  }
  seeds = accuracy["none"].keys() & accuracy["dpn"].keys()
  return stats.mean([accuracy["dpn"][s] - accuracy["none"][s] for s in seeds])


def report(arms: Mapping[str, Sequence[runs.Run]]) -> str:
  """Returns the page; its figures show the complete runs."""
  done = {
    stem: [run for run in repetitions if run.complete]
    for stem, repetitions in arms.items()
  }
  done = {
    stem: repetitions for stem, repetitions in done.items() if repetitions
  }
  if not done:
    raise ValueError(
      "None of the runs is complete: bash scripts/quickstart.sh goes on with "
      "them."
    )
  return page.page(
    "Dual PatchNorm in miniature",
    *_what(done),
    *_results(arms),
    *_figures(done),
    *_published(),
    *_next(next(iter(done.values()))[0]),
  )


def _what(arms):
  run = next(iter(arms.values()))[0]
  model, step = run.config["model"], run.done["step"]
  rows, cols = model["patch_size"]
  return (
    page.paragraph(
      "Dual PatchNorm (arXiv 2302.01327) puts one LayerNorm before and one "
      "after the patch embedding of a Vision Transformer: x = LN(PE(LN(x))). "
      "This page compares it with the plain stem, on a task small enough for "
      "a laptop."
    ),
    page.paragraph(
      f"Trained here: a ViT of width {model['width']} with {model['depth']} "
      f"blocks on patches of {rows}×{cols} pixels, for {step:,} steps of "
      f"{run.config['input']['batch_size']} images, on the 1,797 scanned "
      "digits that come with scikit-learn: 1,438 to train on, 359 to test. "
      "The arms differ in `stem_ln` and in nothing else."
    ),
  )


def _results(arms):
  parts = [
    page.heading("Result"),
    page.table(HEADER, results(arms)),
    page.paragraph(
      "Mean ± 95% confidence interval over runs that differ in their seed "
      "(Student's t). 5-shot: a linear probe fitted to five training images "
      "per class. Seconds: training one run, evaluations included."
    ),
  ]
  difference = gain(arms)
  if difference.n:
    parts.append(
      page.paragraph(
        "Dual PatchNorm minus ViT, seed by seed: "
        f"{difference.text(scale=100, digits=1, sign='+')} points of test "
        "accuracy. An interval that contains 0 does not tell the two apart."
      )
    )
  return parts


def _published():
  table = json.loads(_TABLES.read_text("utf-8"))["1_left"]
  return (
    page.heading("What the paper reports, at scale"),
    page.table(
      ("recipe", "model", "ViT", "Dual PatchNorm", "gain"),
      [_published_row(row) for row in table["rows"]],
    ),
    page.paragraph(
      f"{table['title']}, in %; {table['setting']}. "
      f"Source: {table['source']}. The digits above are a miniature: they "
      "show how the comparison is made, and can neither confirm nor refute "
      "these numbers."
    ),
  )


def _published_row(row):
  return (
    row["recipe"],
    row["arch"],
    f"{row['base']:.1f} ± {row['base_ci']:.2f}",
    f"{row['dpn']:.1f} ± {row['dpn_ci']:.2f}",
    f"{row['dpn'] - row['base']:+.1f}",
  )


def _figures(done):
  arms = {ARMS.get(stem, stem): runs_ for stem, runs_ in done.items()}
  parts = [
    page.heading("Training"),
    page.row(
      page.picture(
        plots.curves({"": arms}, "loss", "training loss"),
        "Loss of single training batches, mean with its 95% interval.",
      ),
      page.picture(
        plots.curves({"": arms}, ACCURACY, "test accuracy [%]", scale=100),
        "Accuracy on the test images.",
      ),
    ),
    page.heading("Inside the network"),
  ]
  inside = [
    page.picture(
      plots.gradient_depth({"": arms}, last_steps=LAST_STEPS),
      "Gradient norm of the patch embedding and of each block, mean over the "
      f"last {LAST_STEPS} steps as logged, with 95% intervals. In the "
      "paper's Figure 2 the norm of the embedding drops with Dual PatchNorm.",
    )
  ]
  if "dpn" in done:
    scales = {
      f"seed {run.config['seed']}": run.param("stem/ln0/scale")
      for run in done["dpn"]
    }
    patch_size = done["dpn"][0].config["model"]["patch_size"]
    inside.append(
      page.picture(
        plots.scale_maps(scales, [patch_size] * len(scales)),
        "What the first LayerNorm of Dual PatchNorm multiplies each pixel of "
        "a patch with; training begins at 1 (white). In the paper's Figure 3 "
        "the scales grow at the centre and the corners.",
      )
    )
  return [*parts, page.row(*inside)]


def _next(run):
  return (
    page.heading("Again, and further"),
    page.paragraph(
      "One of these runs by itself; other values of `stem_ln` are the paper's "
      "ablations:"
    ),
    page.commands(
      "python -m trainers.train --workdir runs/digits \\",
      "  --config configs/digits.py:stem_ln=dpn,seed=0",
    ),
    page.paragraph(
      f"A run's folder, such as `{run.path}`, holds its config, metrics, "
      "checkpoints and trained parameters."
    ),
  )


def main(argv: Sequence[str] | None = None):
  parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
  parser.add_argument("root", help="folder that holds the runs' folders")
  root = parser.parse_args(argv).root
  try:
    arms = by_arm(runs.find([root]))
    print(render.aligned(HEADER, results(arms)))
    path = pathlib.Path(root, "report.html")
    path.write_text(report(arms), encoding="utf-8")
  except ValueError as e:
    sys.exit(f"Error: {e}")
  print(f"Report with figures: {path.absolute()}")


if __name__ == "__main__":
  main()
