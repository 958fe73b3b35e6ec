"""Figures come out of run folders and parameter files, or say why not."""

import numpy as np
import pytest
import safetensors.numpy

from scripts import figures as command
from scripts import testing
from scripts.results import figures, runs

SCALE = "stem/ln0/scale"


def _write(root, arm, seed, *, gain=0.0, complete=True):
  rows = [
    {
      "step": step,
      "loss": 1.0,
      "val/prec@1": 0.7 + gain,
      "grad_norm/embedding": 0.5,
      "grad_norm/block00": 0.1,
    }
    for step in (10, 20)
  ]
  stem = {"base": "none"}.get(arm, arm)
  table = {"recipe": "AugReg", "arch": "B/16", "arm": arm}
  testing.write_run(
    root / f"{arm}-s{seed}",
    config={
      "table": table | {"metric": "val/prec@1"},
      "model": {"variant": "B/16", "stem_ln": stem},
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


def test_all_figures_of_a_folder(root, tmp_path, capsys):
  out = tmp_path / "out"
  command.main([str(root), "--figure", "all", "-o", str(out)])
  names = {"figure_1", "figure_2", "figure_3", "figure_4", "table_6"}
  names |= {"curves_loss", "curves_accuracy"}
  assert {path.stem for path in out.iterdir()} == names
  for name in names:
    assert (out / f"{name}.png").read_bytes()[:4] == b"\x89PNG"
    assert (out / f"{name}.pdf").read_bytes()[:5] == b"%PDF-"
  assert "Not drawn" not in capsys.readouterr().err


def test_bars_are_the_tables_differences(root):
  found = runs.frame(runs.find([str(root)]))
  fig = figures.FIGURES["6"](found, figures.DEFAULTS)["table_6"]
  widths = [bar.get_width() for bar in fig.axes[0].patches]
  np.testing.assert_allclose(widths[:2], [-1.0, -3.0])  # base, pre
  assert np.isnan(widths[2:]).all()


def test_panels_are_models_with_their_arms(root):
  _write(root, "dpn", 5, complete=False)
  found = runs.frame(runs.find([str(root)]))
  panels = figures.panels(found, "loss")
  assert list(panels) == ["AugReg B/16"]
  arms = panels["AugReg B/16"]
  assert {k: len(v) for k, v in arms.items()} == {
    "ViT": 2,
    "Dual PatchNorm": 2,
  }
  assert list(figures.panels(found, "loss", ["pre"])["AugReg B/16"]) == ["pre"]
  with pytest.raises(ValueError, match="Unknown metric 'los'"):
    figures.panels(found, "los")


def test_scales_of_a_parameter_file(tmp_path):
  path = tmp_path / "x.npz"
  scale = np.arange(2 * 3 * 3, dtype=np.float32)
  kernel = np.zeros((2, 3, 3, 4), np.float32)
  np.savez(
    path, **{f"params/{SCALE}": scale, "params/embedding/kernel": kernel}
  )
  command.main([str(path), "--figure", "3", "-o", str(tmp_path / "out")])
  assert (tmp_path / "out" / "figure_3.png").exists()
  read = figures.read_scale(str(path))
  np.testing.assert_array_equal(read, scale.reshape(2, 3, 3))


def test_wrong_inputs_end_with_a_sentence(root, tmp_path):
  plain = tmp_path / "plain.safetensors"
  safetensors.numpy.save_file({"head/bias": np.zeros(2)}, plain)
  other = tmp_path / "other.npz"
  kernel = np.zeros((4, 4, 3, 8), np.float32)
  np.savez(other, **{SCALE: np.ones(12), "embedding/kernel": kernel})
  (root / "dpn-s0" / "params.safetensors").unlink()
  lone = str(root / "dpn-s0")
  out = ["-o", str(tmp_path / "out")]
  for argv, message in (
    ([str(plain), "--figure", "3"], "has no 'stem/ln0/scale'"),
    ([lone, "--figure", "3"], r"There is no .*params\.safetensors"),
    ([lone, "--figure", "6"], "can be compared with dpn"),
    ([str(tmp_path / "nowhere.npz"), "--figure", "3"], "There is no"),
    ([str(root / "nowhere"), "--figure", "4"], "nowhere is not a folder"),
    ([str(plain), "--figure", "4"], "Only Figure 3 is drawn from"),
    ([str(other), "--figure", "3"], r"has 12 numbers, .* \(4, 4, 3\)"),
    ([lone, "--figure", "curves", "--arms", "dpnn"], "Did you mean 'dpn'"),
  ):
    with pytest.raises(SystemExit, match=message):
      command.main([*argv, *out])


@pytest.mark.parametrize(
  ("flags", "message"),
  [
    (["--figure", "5"], "invalid choice: '5' (choose from '1', "),
    (["--figure", "2", "--last_steps", "0"], "expected 1 or more"),
  ],
)
def test_wrong_flags_are_named(root, capsys, flags, message):
  with pytest.raises(SystemExit):
    command.main([str(root), *flags, "-o", str(root / "out")])
  assert message in capsys.readouterr().err
