"""Run folders are read as written; what is no run is told apart."""

import dataclasses
import importlib
import json
import math

import pytest

from dpn.scripts import conftest as testing
from dpn.scripts.results import aggregate, run_files, run_lists, runs

ROWS = [
  {"step": 50, "loss": 2.0},
  {"step": 75, "test/prec@1": 0.5},
  {"step": 100, "loss": 1.0, "test/prec@1": 0.75},
]


def test_reads_what_was_written_and_names_the_nearest(tmp_path):
  testing.write_run(tmp_path / "a", rows=ROWS, seconds=7.0)
  run = run_files.read(str(tmp_path / "a"))
  assert run.config["seed"] == 0
  assert run.final("test/prec@1") == 0.75
  assert run.series("loss").to_dict() == {50: 2.0, 100: 1.0}
  assert run.series("test/prec@1").to_dict() == {75: 0.5, 100: 0.75}
  with pytest.raises(ValueError, match="Did you mean 'test/prec@1'"):
    run.final("test/prec1")
  with pytest.raises(ValueError, match="Did you mean 'loss'"):
    run.series("los")


def test_find_takes_each_run_once_and_follows_links_not_in_circles(tmp_path):
  for name in ("elsewhere/sweep/b", "elsewhere/c", "runs/d/e", "runs/a"):
    testing.write_run(tmp_path / name, rows=ROWS)
  root, there = tmp_path / "runs", tmp_path / "elsewhere"
  (root / "report.html").write_text("")
  (root / "notes").mkdir()
  (root / "a_sweep").symlink_to(there / "sweep", target_is_directory=True)
  (root / "again").symlink_to(root / "a", target_is_directory=True)
  (root / "c").symlink_to(there / "c", target_is_directory=True)
  (there / "sweep" / "up").symlink_to(root, target_is_directory=True)
  (root / "broken").symlink_to(tmp_path / "nowhere")
  found = run_files.find([str(root), str(root / "a"), str(there)])
  names = ("a", "d/e", "a_sweep/b", "c")
  assert [run.path for run in found] == [str(root / name) for name in names]


def test_a_killed_run_may_have_cut_its_last_line(tmp_path):
  testing.write_run(tmp_path / "a", rows=ROWS)
  path = tmp_path / "a" / "metrics.jsonl"
  whole = path.read_text()
  path.write_text(whole + '{"step": 150, "lo')
  assert list(run_files.read(str(path.parent)).logged.index) == [50, 75, 100]
  path.write_text('{"step": 1, "lo\n' + whole)
  with pytest.raises(ValueError, match=r"metrics\.jsonl is damaged"):
    run_files.read(str(path.parent))


def test_speed_and_origin_where_they_were_recorded(tmp_path):
  testing.write_run(tmp_path / "a", rows=ROWS, seconds=7.0)
  run = run_files.read(str(tmp_path / "a"))
  other = dataclasses.replace(run, config=dict(run.config, seed=1))
  first, second = runs.frame([run, other]).itertuples()
  assert (first.commit, first.device) == ("unknown", "unknown")
  assert math.isnan(first.images_per_sec)
  assert first.config_hash != second.config_hash
  (tmp_path / "a" / "environment.json").write_text(
    '[{"commit": "0a"}, {"commit": "1b", "config_hash": "cd", '
    '"device_kind": "TPU v4", "num_devices": 8}]'
  )
  rows = [
    {"step": i, "images_per_sec": speed, "core_hours": i, "seconds": 4}
    for i, speed in enumerate((5, 7, 30))
  ]
  text = "".join(json.dumps(row) + "\n" for row in rows)
  (tmp_path / "a" / "timing.jsonl").write_text(text)
  run = run_files.read(str(tmp_path / "a"))
  other = dataclasses.replace(run, done=None)
  first, second = runs.frame([run, other]).itertuples()
  assert (first.commit, first.config_hash) == ("1b", "cd")
  assert first.device == "8 × TPU v4"
  assert first.images_per_sec == 7  # the median
  assert first.core_hours == 2  # the last
  assert first.seconds == 7.0  # of done.json
  assert second.seconds == 12


def test_folders_without_runs_are_refused(tmp_path):
  with pytest.raises(ValueError, match=r"it has no config\.json"):
    run_files.read(str(tmp_path))
  with pytest.raises(ValueError, match="Found no run in"):
    run_files.find([str(tmp_path)])
  (tmp_path / "config.json").write_text('{"model": {"stem_ln": 7}}')
  with pytest.raises(ValueError, match=rf"{tmp_path} is damaged.*TypeError"):
    run_files.find([str(tmp_path)])
  with pytest.raises(ValueError, match="nowhere is not a folder"):
    run_files.find([str(tmp_path / "nowhere")])


def test_a_run_is_complete_with_any_done_json(tmp_path):
  """Without metrics there, what the last step logged counts, in all rows."""
  testing.write_run(tmp_path / "a", rows=[*ROWS, {"step": 100, "val/x": 2.5}])
  (tmp_path / "a" / "done.json").write_text("{}")
  run = run_files.read(str(tmp_path / "a"))
  assert run.complete
  assert run.finals == {
    "loss": 1.0,
    "test/prec@1": 0.75,
    "val/x": 2.5,
    runs.TRAINING_LOSS: 1.0,
  }


@pytest.mark.parametrize(
  ("config", "recipe", "arch", "arm"),
  [
    ("augreg_i1k:variant=S/32", "AugReg", "S/32", "dpn"),
    ("augreg_i1k:variant=Ti/16,stem_ln=none", "AugReg", "Ti/16", "base"),
    ("stem_ablation:stem_ln=rmsnorm", "AugReg", "B/16", "rmsnorm"),
    (
      "ln_placement:sa=post,mlp=pre+post",
      *("AugReg", "B/16", "sa=post,mlp=pre+post"),
    ),
    ("ln_placement:sa=pre,mlp=pre", "AugReg", "B/16", "base"),
    ("ln_placement:post=stream", "AugReg", "B/16", "base"),
    ("ln_placement:block=sub_ln", "AugReg", "B/16", "sub_ln"),
    (
      "ln_placement:block=normformer,head_scale=none",
      *("AugReg", "B/16", "normformer,head_scale=none"),
    ),
    ("finetune_i1k:variant=B/32,init=x", "AugReg+384 finetune", "B/32", "dpn"),
    ("lape_cifar:lite-7/4", "LaPE", "lite-7/4", "base"),
    (
      "lape_cifar:posemb_join=lape,block_ln=sub_ln,norm=dtn",
      *("LaPE", "lite-7/4", "sub_ln+dtn+lape"),
    ),
    ("lape_deit:posemb_join=add", "LaPE", "Ti/16", "base"),
    (
      "lape_deit:posemb_join=lape,posemb_join_kw.share=True",
      *("LaPE", "Ti/16", "lape,share=True"),
    ),
    (
      "lape_deit:posemb_join=lape,posemb_join_kw.norm=scalar,crop=256",
      *("LaPE, evaluated 256 → 224", "Ti/16", "lape,norm=scalar"),
    ),
    ("dtn_i1k:variant=S_star,norm=layernorm", "DTN", "S*", "base"),
    (
      "dtn_i1k:norm=dtn,norm_kw.pos_init=released,recipe=deit",
      *("DTN, DeiT's recipe", "S", "dtn,pos_init=released"),
    ),
  ],
)
def test_cells_of_the_papers_configs(config, recipe, arch, arm):
  name, _, arg = config.partition(":")
  module = importlib.import_module(f"dpn.configs.{name}")
  cell = runs.Run("path", module.get_config(arg).to_dict()).cell
  assert (cell["recipe"], cell["arch"], cell["arm"]) == (recipe, arch, arm)


def test_runs_without_a_table_share_a_row_if_only_seed_and_arm_differ():
  def row(lr=1.0, **kw):
    model = {"width": 8, "stem_ln": "none", **kw.pop("model", {})}
    cell = runs.Run("path", {"lr": lr, "model": model, **kw}).cell
    return cell["recipe"], cell["arch"]

  assert row()[0] == "own"
  dtn = {"norm": "dtn", "norm_kw": {"pos_init": "released"}}
  for model in ({"stem_ln": "dpn"}, {"posemb_join": "lape"}, dtn):
    assert row() == row(model=model, seed=1, log_training_steps=5)
  assert row() != row(lr=2.0)
  # An arm may have parameters of its own to start from, if the other has, too.
  mine = row(model_init="mine", model={"stem_ln": "dpn"})
  assert row(model_init="plain") == mine != row()
  assert row() != row(model={"norm_kw": {"eps": 1e-5}})


def test_titles_tell_cells_apart():
  def title(**table):
    return runs.Run("path", {"table": table}).title

  table = {"recipe": "JFT finetune", "arch": "B/16", "arm": "dpn"}
  finetuned = title(**table, resolution=384, steps=220_000, metric="x")
  assert finetuned == "JFT finetune B/16 resolution 384 steps 220000"
  assert title(recipe="VTAB", arch="B/32", task="DTD") == "VTAB B/32 DTD"
  assert title(recipe="LaPE", arch="", join="") == "LaPE"


def test_headline_metrics(tmp_path):
  def headline(table=None, **logged):
    folder = tmp_path / str(len(list(tmp_path.iterdir())))
    row = {"step": 1, "loss": 1.0, "grad_norm/block00": 1.0, **logged}
    config = {"table": table} if table else {}
    testing.write_run(folder, config=config, rows=[row], seconds=1.0)
    return run_files.read(str(folder)).headline

  assert headline({"metric": "a/b"}) == ("a/b",)
  assert headline({"metric": "a/b", "also": ["c/d"]}) == ("a/b", "c/d")
  assert headline(**{"val/loss": 1.0, "val/prec@1": 0.5}) == ("val/prec@1",)
  assert headline(**{"val/mse": 1.0, "val/mae": 2.0}) == ("val/mse", "val/mae")
  assert headline() == ("loss",)


def test_the_log_is_summed_up(tmp_path):
  norms = {1: 4.0, 2: 2.0, 3: 2.0}
  losses = {28: 9.0, 29: 1.0, 30: 2.0}
  rows = [
    {
      "step": step,
      "loss": losses.get(step, 30.0),
      "l2_grads": 4.0,
      "grad_norm/embedding": norms.get(step, 1.0),
    }
    for step in range(1, 31)
  ]
  testing.write_run(tmp_path / "done", rows=rows, seconds=1.0)
  run = run_files.read(str(tmp_path / "done"))
  # Of 30 steps the last three; shares 1, 1/2 (twice) and 1/4.
  assert run.finals[runs.TRAINING_LOSS] == 4.0
  assert run.finals[runs.EMBEDDING_SHARE] == 0.25
  assert run.headline == ("loss",)
  testing.write_run(tmp_path / "going", rows=rows)
  assert run_files.read(str(tmp_path / "going")).finals == {}

  (tmp_path / "a.jsonl").write_text(run_files.archive([run]))
  [again] = run_files.find([str(tmp_path / "a.jsonl")])
  assert again.finals == run.finals
  # Its means over tenths of the run do not tell a median over all of it.
  line = json.loads((tmp_path / "a.jsonl").read_text())
  del line["done"]["metrics"][runs.EMBEDDING_SHARE]
  (tmp_path / "a.jsonl").write_text(json.dumps(line))
  [older] = run_files.find([str(tmp_path / "a.jsonl")])
  assert older.finals[runs.TRAINING_LOSS] == 4.0
  assert runs.EMBEDDING_SHARE not in older.finals


def test_two_archives_may_name_their_runs_alike(tmp_path):
  archives = []
  for seed in (0, 1):
    folder = tmp_path / str(seed) / "runs" / "a"
    rows = [{"step": 1, "loss": 1.0 + seed}]
    testing.write_run(folder, seed=seed, rows=rows, seconds=1.0)
    archives.append(tmp_path / f"{seed}.jsonl")
    text = run_files.archive(run_files.find([str(folder.parent)]))
    archives[-1].write_text(text)
  table = runs.long(runs.frame(run_files.find([*map(str, archives)])))
  assert table[["run", "seed", "value"]].to_numpy().tolist() == [
    ["runs/a", 0, 1.0],
    ["runs/a", 1, 2.0],
  ]


def test_a_folder_and_an_archive_of_it_have_the_same_runs(tmp_path):
  for name, seed, seconds in (("a", 0, None), ("b", 1, None), ("c", 2, 9.0)):
    testing.write_run(tmp_path / name, seed=seed, rows=ROWS, seconds=seconds)
  (tmp_path / "b/diverged.txt").write_text("Loss is NaN at step 101.")
  (tmp_path / "b/timing.jsonl").write_text('{"step": 9, "core_hours": 2}\n')
  (tmp_path / "c/test.json").write_text('{"final/prec@1": 0.875}')
  text = run_files.archive(run_files.find([str(tmp_path)]))
  (tmp_path / "runs.jsonl").write_text(text)
  (tmp_path / "a/done.json").write_text((tmp_path / "c/done.json").read_text())
  both = [str(tmp_path), str(tmp_path / "runs.jsonl")]
  frame = runs.frame(run_files.find(both))
  assert list(frame.status[frame.seed == 1]) == 2 * ["diverged, step 100"]
  numbers = runs.long(frame)
  final = numbers[numbers.metric == "final/prec@1"]
  assert final[["step", "value"]].to_numpy().tolist() == 2 * [[100, 0.875]]
  arm = aggregate.arm(frame, ["test/prec@1"])
  assert (arm.n, len(arm.open), len(arm.copies)) == (2, 1, 1)
  _, costs, _ = run_lists.speed(frame)
  [(*_, count, _, _, hours, _)] = costs["rows"]
  assert (count, hours) == (3, "2.00")


def test_an_archive_stands_for_folders(tmp_path):
  row = lambda i: {"step": i, "loss": float(i), "grad_norm/block00": 1.0}
  rows = [row(i) for i in range(1, 41)]
  rows[-1]["test/prec@1"] = 0.25
  rows[18]["test/prec@1"] = 0.125
  for seed in (0, 1):
    folder = tmp_path / "runs" / f"s{seed}"
    data = {"name": "digits", "data_dir": "/home/me/data"}
    config = {"input": {"data": data}, "model_init": f"{tmp_path}/runs/s9"}
    config["input"]["more"] = {"data": data}  # a part of a mixture
    config["table"] = {"metric": "test/prec@1"}
    config["evals"] = {"test": {"data": data, "flip": True}, "val": {}}
    testing.write_run(folder, seed=seed, config=config, rows=rows, seconds=9.0)
    start = {"commit": "abc", "command": ["/home/me/train.py"]}
    (folder / "environment.json").write_text(json.dumps([start]))
  found = run_files.find([str(tmp_path / "runs")])
  (tmp_path / "runs.jsonl").write_text(run_files.archive(found))
  again = run_files.find([str(tmp_path / "runs.jsonl")])
  assert [run.path for run in again] == ["runs/s0", "runs/s1"]
  assert again[0].config["input"]["data"] == {"name": "digits"}
  assert again[0].config["model_init"] == "runs/s9"
  measured = {"test": {"data": {"name": "digits"}, "flip": True}}
  assert again[0].config["evals"] == measured
  assert again[0].origin == {"commit": "abc"}
  assert again[0].averaged
  text = (tmp_path / "runs.jsonl").read_text()
  assert "/home/me" not in text
  assert str(tmp_path) not in text
  for run, want in zip(again, found, strict=True):
    assert (run.cell, run.finals) == (want.cell, want.finals)
    # Of 40 steps, means of four: 1 to 4, 5 to 8, ….
    loss = run.series("loss")
    assert loss.to_dict() == {4 * i: 4 * i - 1.5 for i in range(1, 11)}
    assert run.series("test/prec@1").to_dict() == {19: 0.125, 40: 0.25}
    assert "grad_norm/block00" not in run.logged
  for text, message in (
    ('{"path": 1}', "line 1: path must be of type str, got 1"),
    ("5", "line 1: it must be of type dict, got 5"),
    ("[" * 100_000, "line 1 is damaged, expected JSON"),
  ):
    (tmp_path / "runs.jsonl").write_text(text)
    with pytest.raises(ValueError, match=f"is no archive of runs .{message}"):
      run_files.find([str(tmp_path / "runs.jsonl")])
