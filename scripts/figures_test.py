"""Figures come out of run folders and parameter files, or say why not."""

import argparse
import pathlib

import numpy as np
import pytest
import safetensors.numpy

from dpn.scripts import conftest as testing
from dpn.scripts import figures as command
from dpn.scripts.results import figures, measures, run_files, runs

SCALE = "stem/ln0/scale"
RESULTS = pathlib.Path(__file__).parents[1] / "docs/results"


def _write(root, arm, seed, *, gain=0.0, complete=True, arch="B/16"):
  rows = [
    {
      "step": step,
      "loss": 1.0,
      "val/prec@1": 0.7 + gain,
      **{
        f"grad_norm{kind}/{group}": norm * step
        for group, norm in (("embedding", 0.5), ("block00", 0.1))
        for kind in ("", "_mean", "_clipped", "_clipped_mean")
      },
    }
    for step in (10, 20)
  ]
  stem = {"base": "none"}.get(arm, arm)
  table = {"recipe": "AugReg", "arch": arch, "arm": arm}
  testing.write_run(
    root / f"{arm}_{arch[0]}{arch[2:]}-s{seed}",
    config={
      "table": table | {"metric": "val/prec@1"},
      "model": {"variant": arch, "stem_ln": stem},
      "log_grad_depth": 15,
    },
    seed=seed,
    rows=rows,
    seconds=1.0 if complete else None,
    params={SCALE: np.full(12, 1.0 + seed, np.float32)},
  )


@pytest.fixture
def root(tmp_path):
  for seed in range(2):
    _write(tmp_path, "base", seed)
    _write(tmp_path, "dpn", seed, gain=0.01)
    _write(tmp_path, "pre", seed, gain=-0.02)
  return tmp_path


def _found(path):
  return runs.frame(run_files.find([str(path)]))


def _draw(path, name, **options):
  """Returns what a figure shows of the runs at a path, by file."""
  args = argparse.Namespace(**vars(figures.DEFAULTS) | options)
  return figures.FIGURES[name](_found(path), args)


def test_all_figures_of_a_folder(root, tmp_path, capsys):
  out = tmp_path / "out"
  _write(root, "dpn", 0, arch="S/32")
  command.main([str(root), "--figure", "all", "-o", str(out)])
  names = {"figure_1", "figure_3", "figure_4", "table_6"}
  names |= {"figure_2_left", "figure_2_right"}
  names |= {"curves_loss", "curves_val_prec_1", "differences_val_prec_1_base"}
  assert {path.stem for path in out.iterdir()} == names
  for name in names:
    assert (out / f"{name}.png").read_bytes()[:4] == b"\x89PNG"
    assert (out / f"{name}.pdf").read_bytes()[:5] == b"%PDF-"
  said = capsys.readouterr()
  assert "Not drawn" not in said.err
  assert f"{root}/dpn_B16-s1: repetitions of what is shown" in said.out


def test_what_can_be_drawn_is_written(root, tmp_path):
  out = tmp_path / "out"
  names = ["curves", "--figure", "zoo", "2"]
  with pytest.raises(SystemExit, match=r"Error: Not drawn: zoo\. "):
    command.main([str(root), "--figure", *names, "-o", str(out)])
  assert (out / "curves_loss.png").exists()


def test_what_is_not_done_takes_no_curve_from_others(root):
  rows = [{"step": 1, "loss": 1.0, "val/miou": 0.5}]
  table = {"recipe": "CamVid", "arch": "96x4/8", "metric": "val/miou"}
  testing.write_run(root / "x", config={"table": table}, rows=rows)
  assert [*_draw(root, "curves")] == ["curves_loss", "curves_val_prec_1"]


def test_runs_without_a_step_have_curves_of_what_was_evaluated(tmp_path):
  testing.write_run(tmp_path / "x", results={"val/prec@1": 0.5})
  assert [*_draw(tmp_path, "curves")] == ["curves_val_prec_1"]


def _dots(drawn):
  lines = drawn.figure.axes[0].lines
  return [x.get_xdata()[0] for x in lines if x.get_marker() == "o"]


def test_dots_are_the_tables_differences(root):
  drawn = _draw(root, "6")["table_6"]
  np.testing.assert_allclose(_dots(drawn), [-1.0, -3.0])  # base and pre
  dots = _dots(_draw(root, "differences")["differences_val_prec_1_base"])
  np.testing.assert_allclose(dots, [1.0, -2.0])  # dpn, pre
  _write(root / "again", "pre", 0, gain=0.2)
  drawn = _draw(root, "differences")["differences_val_prec_1_base"]
  np.testing.assert_allclose(_dots(drawn), [1.0])
  [(why, of)] = drawn.left_out.items()
  assert (of, why[:5]) == (["AugReg B/16"], "pre: ")


def test_the_metric_that_differs_comes_first():
  drawn = _draw(RESULTS / "digits.jsonl", "differences")
  assert [name.split("_base")[0] for name in drawn] == [
    "differences_corruptions_contrast_prec_1",
    "differences_test_prec_1",
  ]


def test_only_the_plain_vit_s_level_is_called_plain():
  camvid, shown = RESULTS / "camvid.jsonl", {}
  for baseline in ("base", "dpn"):
    [drawn] = _draw(camvid, "differences", baseline=baseline).values()
    shown[baseline] = drawn.figure.axes[0].get_title()
  assert "(plain:\N{NO-BREAK SPACE}30.9)" in shown["base"]
  assert "plain" not in shown["dpn"]


def test_panels_are_models_with_their_arms(root):
  _write(root, "dpn", 5, complete=False)
  found = _found(root)
  panels, _ = figures.panels(found, "loss")
  assert list(panels) == ["AugReg B/16"]
  arms = panels["AugReg B/16"]
  want = {"ViT": 2, "Dual PatchNorm": 2, "pre": 2}
  assert {k: len(v) for k, v in arms.items()} == want
  pre, left_out = figures.panels(found, "loss", ["pre"])
  assert list(pre["AugReg B/16"]) == ["pre"]
  [paths] = left_out.values()
  assert len(paths) == 4
  with pytest.raises(ValueError, match="Unknown metric 'los'"):
    figures.panels(found, "los")


def test_panels_do_not_mix_settings(root):
  table = {"recipe": "AugReg", "arch": "B/16", "metric": "val/prec@1"}
  rows = [{"step": step, "loss": 9.0} for step in (10, 20)]
  kw = {"stem_ln": "dpn", "seed": 2, "rows": rows, "seconds": 1.0}
  testing.write_run(root / "other", config={"lr": 0.5, "table": table}, **kw)
  found = _found(root)
  panels, left_out = figures.panels(found, "loss")
  assert list(panels["AugReg B/16"]) == ["ViT", "pre"]
  [(why, paths)] = left_out.items()
  assert why.startswith("fill the same cell and differ in more than the seed (")
  assert "lr: absent, 0.5" in why
  assert sorted(path.removeprefix(f"{root}/") for path in paths) == [
    *("dpn_B16-s0", "dpn_B16-s1", "other")
  ]


def test_scales_of_a_parameter_file(tmp_path):
  path = tmp_path / "x.npz"
  scale = np.arange(2 * 3 * 3, dtype=np.float32)
  kernel = np.zeros((2, 3, 3, 4), np.float32)
  arrays = {f"params/{SCALE}": scale, "params/embedding/kernel": kernel}
  np.savez(path, **arrays)
  command.main([str(path), "--figure", "3", "-o", str(tmp_path / "out")])
  assert (tmp_path / "out" / "figure_3.png").exists()
  read = measures.read_scale(str(path))
  np.testing.assert_array_equal(read, scale.reshape(2, 3, 3))


def test_an_archived_run_never_has_parameters(tmp_path, monkeypatch):
  """Wherever it is read."""
  _write(tmp_path / "mine", "dpn", 0)
  found = run_files.find([str(tmp_path / "mine")])
  (tmp_path / "mine.jsonl").write_text(run_files.archive(found))
  again = run_files.find([str(tmp_path / "mine.jsonl")])
  monkeypatch.chdir(tmp_path)
  [run] = again
  assert (tmp_path / run.path / "params.safetensors").exists()  # anybody's
  assert run.folder is None  # where reports look for pictures
  chosen, reasons = figures.scale_files(runs.frame(again))
  assert chosen == {}
  assert reasons == {"from an archive, which has no parameters": [run.path]}


def test_gradients_by_depth_are_not_drawn_of_archives(root, capsys):
  archive = root / "all.jsonl"
  archive.write_text(run_files.archive(run_files.find([str(root)])))
  out = str(root / "out")
  with pytest.raises(SystemExit, match=r"s0.*: without grad_norm_mean/block…"):
    command.main([str(archive), "--figure", "2_left", "-o", out])
  command.main([str(archive), "--figure", "2_right", "-o", out])
  [png, _] = capsys.readouterr().out.splitlines()
  assert png.endswith("figure_2_right.png.")


def test_wrong_inputs_end_with_a_sentence(root, tmp_path):
  plain = tmp_path / "plain.safetensors"
  safetensors.numpy.save_file({"head/bias": np.zeros(2)}, plain)
  other = tmp_path / "other.npz"
  kernel = np.zeros((4, 4, 3, 8), np.float32)
  np.savez(other, **{SCALE: np.ones(12), "embedding/kernel": kernel})
  (root / "dpn_B16-s0" / "params.safetensors").unlink()
  lone = str(root / "dpn_B16-s0")
  out = ["-o", str(tmp_path / "out")]
  for argv, message in (
    ([str(plain), "--figure", "3"], "has no 'stem/ln0/scale'"),
    ([lone, "--figure", "3"], r"s0: without params\.safetensors"),
    ([lone, "--figure", "6"], "can be compared with dpn"),
    ([str(tmp_path / "nowhere.npz"), "--figure", "3"], "There is no"),
    ([str(root / "nowhere"), "--figure", "4"], "nowhere is not a folder"),
    ([str(plain), "--figure", "4"], "Only Figure 3 is drawn from"),
    ([str(other), "--figure", "3"], r"has 12 numbers, .* \(4, 4, 3\)"),
    ([lone, "--figure", "curves", "--arms", "dpnn"], "Did you mean 'dpn'"),
  ):
    with pytest.raises(SystemExit, match=message):
      command.main([*argv, *out])


FLAGS = {"clipped": True, "linear": True}


@pytest.mark.parametrize(
  ("flags", "when", "scale"),
  [({}, "before", "log"), (FLAGS, "after", "linear")],
)
def test_gradient_norms_are_labelled(root, flags, when, scale):
  for arch in figures.APPENDIX_H:
    _write(root, "dpn", 0, arch=arch)
  titles = {}
  for name in ("2_left", "4"):
    [(file, drawn)] = _draw(root, name, **flags).items()
    axes = drawn.figure.axes
    assert axes[0].get_ylabel() == (
      f"gradient norm {when} clipping,\nmean of the last 15 steps"
    )
    assert {ax.get_yscale() for ax in axes} == {scale}
    # Of the last row: 20 · 0.5 and 20 · 0.1.
    line = axes[0].lines[-1].get_ydata()
    np.testing.assert_allclose(line, [10, 2], rtol=1e-6)
    titles[file] = [ax.get_title() for ax in axes]
  assert titles == {
    "figure_2_left": ["AugReg B/16"],
    "figure_4": ["AugReg B/32", "AugReg S/16", "AugReg S/32"],
  }
