"""Of every arm of every sweep: what shows the run, or why it does not."""

import zlib

import pandas as pd
import pytest

from dpn.configs.conftest import CONFIGS
from dpn.configs.conftest import module as configs_module
from dpn.input_pipeline import conftest as testing
from dpn.scripts import report
from dpn.scripts.results import claims, figures, paper, runs, tables

# Arguments of the sweeps that need some, or are long, or can be read otherwise.
ARGUMENTS = {
  "ade20k": ("seeds=1",),
  "augreg_i1k": ("seeds=2,variants=B/16+B/32",),
  # No table of the papers has an arm of other pixels, or of other statistics.
  "camvid_rates": ("methods=none+dpn+tract+dpn+patch_stats",),
  "cifar10_lit": ("seeds=1,init=x.npz",),
  "deit_i1k": ("seeds=1",),
  "dtn_i1k": ("table=all", "recipe=deit"),
  "augreg_i21k": ("variants=B/16", "variants=B/16,steps=93000,setup=i1k"),
  "finetune_i1k": (
    "seeds=2",
    "seeds=1,variants=B/32+L/16,res=224+384,steps=220000+1100000",
    "seeds=1,variants=B/32,pool=map",
  ),
  "jft": (
    "data=mine,classes=7,variants=L/16",
    "data=mine,classes=7,variants=B/16,setup=augreg",
  ),
  "lape_cifar": ("seeds=1",),
  "lape_deit": ("seeds=1", "table=joins", "table=norms"),
  "lit": ("seeds=1,init=x.npz,data=mine,vocab=bytes",),
  "ln_placement": ("seeds=1,variants=B/16+B/32",),
  "mini": ("seeds=1",),
  "mini_vtab": ("init=x.npz",),
  "s16_plus_i1k": ("seeds=1", "seeds=1,epochs=90"),
  "stem_ablation": (
    "seeds=2,variants=B/16+B/32",
    "seeds=1,variants=B/16,cls_row",
  ),
  "sun397_scratch": (
    "variants=B/32,stems=dpn",
    "stage=longer,mixup=0.5,randaug=5",
  ),
  "vtab": ("tasks=DTD+KITTI-Dist,seeds=1", "tasks=DTD,seeds=1,pp=crop_flip"),
}


def _made(name, arm, config):
  """Returns a finished run of an arm; equal configs have equal results."""
  run = runs.Run(f"{name}/{arm['name']}-s{arm['seed']}", config)
  cell = sorted({**run.cell, "candidate": run.table.get("candidate")}.items())
  number = zlib.crc32(str((cell, arm["seed"])).encode()) % 1000 / 1000
  kinds = ("", "_mean", "_clipped", "_clipped_mean")
  row = {
    **{"loss": 1.0, "l2_grads": 1.0, run.table["metric"]: number},
    **{f"grad_norm{k}/embedding": 1 + number for k in kinds},
    **{f"grad_norm{k}/block00": 1.0 for k in kinds},
  }
  if not config.get("log_grad_depth"):
    row = {k: v for k, v in row.items() if not k.startswith("grad_norm")}
  logged = pd.DataFrame([row], index=[100])
  chosen = True if "candidate" in run.table else None
  return runs.Run(run.path, config, logged, {"metrics": row}, chosen=chosen)


@pytest.fixture(scope="module", name="frame")
def _frame(tmp_path_factory):
  """Returns a run of each arm of each config that has a sweep."""
  made = []
  photos = testing.class_folders(tmp_path_factory.mktemp("photos"))
  arguments = ARGUMENTS | {"images": (f"data={photos},seeds=1",)}
  for config in CONFIGS:
    module, name = configs_module(config), config.rpartition(".")[2]
    if not hasattr(module, "sweep") or name == "norm_zoo":  # its own table
      continue
    for i, arg in enumerate(arguments.get(name, (None,))):
      made += [
        _made(f"{name}{i}", arm, module.get_config(arm["arg"]).to_dict())
        for arm in module.sweep(arg)
      ]
  # Of SUN397 and VTAB one candidate has been chosen, the others not.
  cells = set()
  for i, run in enumerate(made):
    if run.chosen:
      cell = str((sorted(run.cell.items()), run.config["seed"]))
      if cell in cells:
        made[i] = runs.Run(
          run.path, run.config, run.logged, run.done, chosen=False
        )
      cells.add(cell)
  return runs.frame(made)


def _once(frame, shown, left_out):
  """Checks that each run is shown, or left out for a single reason."""
  named = [path for paths in left_out.values() for path in paths]
  assert sorted([*shown, *named]) == sorted(frame.path)


def test_tables(frame):
  placed = set()
  for name in paper.TABLES:
    found = tables.sort_runs(name, frame)
    shown = [path for arm in found.arms.values() for path in arm.paths]
    _once(frame, shown, found.left_out)
    repeated = ("copies of runs", "candidates that were not chosen")
    for reason, paths in found.left_out.items():
      if reason.startswith(repeated):
        placed.update(paths)
    placed.update(shown)
  rest = frame[~frame.path.isin(placed)]
  assert rest.empty, rest.path.tolist()


def test_figures(frame):
  for name, table in (("1", "figure_1"), ("6", "6")):
    [drawn] = figures.FIGURES[name](frame, figures.DEFAULTS).values()
    assert drawn.left_out == tables.sort_runs(table, frame).left_out
  _once(frame, *figures.scale_files(frame))
  depth = "grad_norm_mean/embedding"
  again = 0
  for archs in (
    figures.APPENDIX_H.__contains__,
    lambda arch: arch not in figures.APPENDIX_H,
  ):
    shown, reasons = figures.panels(frame, depth, (), archs)
    repetitions = [run for arms in shown.values() for run in arms.values()]
    _once(frame, [r.path for of in repetitions for r in of], reasons)
    again += len(reasons.get("repetitions of a seed", ()))
  assert again > 10  # base and dpn of AugReg, in three sweeps


def test_claims(frame):
  found, left_out = claims.check(frame)
  seen = {path for finding in found for path in finding.paths}
  _once(frame, seen, left_out)
  assert not [f for f in found if f.verdict == "cannot be checked"]


def test_the_report_has_every_run(frame, monkeypatch):
  nothing = lambda frame, names, args: ({}, {})
  monkeypatch.setattr(figures, "draw_all", nothing)  # test_figures
  some = list(frame.run)[::4]
  page, results, wrong = report.report(some, "title")
  assert wrong == []
  assert results
  for run in some:
    assert f">{run.path}</td>" in page
  assert page.count(". Results</h2>") == 1
