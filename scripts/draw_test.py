"""What is drawn is what was logged."""

import numpy as np
import pytest

from scripts import figures, runs, testing


def _arm(folder, **logged_by_seed):
  """Returns runs that logged `metric = [values]` every 10 steps."""
  (metric, by_seed), *_ = logged_by_seed.items()
  for seed, values in enumerate(by_seed):
    rows = [{"step": 10 * (i + 1), metric: v} for i, v in enumerate(values)]
    testing.write_run(folder / str(seed), seed=seed, rows=rows)
  return runs.find([str(folder)])


def test_curves_are_the_runs_and_their_mean(tmp_path):
  arm = _arm(tmp_path, accuracy=[[0.2, 0.6], [0.4, 0.8]])
  fig = figures.curves({"ViT": arm}, "accuracy", "accuracy [%]", scale=100)
  lines = fig.axes[0].lines
  assert [line.get_xdata().tolist() for line in lines] == [[10, 20]] * 3
  np.testing.assert_allclose(
    [line.get_ydata() for line in lines], [[20, 60], [40, 80], [30, 70]]
  )
  assert lines[2].get_linewidth() > lines[0].get_linewidth()
  assert fig.axes[0].get_ylabel() == "accuracy [%]"
  assert [t.get_text() for t in fig.axes[0].get_legend().texts] == ["ViT"]


def test_arms_have_different_colours(tmp_path):
  arms = {n: _arm(tmp_path / n, loss=[[1.0, 0.5]]) for n in ("none", "dpn")}
  lines = figures.curves(arms, "loss", "loss").axes[0].lines
  assert lines[1].get_color() != lines[3].get_color()


def test_runs_of_different_lengths_are_no_repetitions(tmp_path):
  arm = _arm(tmp_path, loss=[[1.0, 0.5], [1.0]])
  with pytest.raises(ValueError, match="'loss' at different steps"):
    figures.curves({"ViT": arm}, "loss", "loss")


def test_gradient_depth_is_the_mean_of_the_last_steps(tmp_path):
  for seed, factor in enumerate((1.0, 3.0)):
    rows = [
      {
        "step": step,
        "grad_norm/block01": 4 * factor * norm,
        "grad_norm/block00": 2 * factor * norm,
        "grad_norm/embedding": factor * norm,
      }
      for step, norm in [(10, 100.0), (20, 1.0), (30, 3.0)]
    ]
    testing.write_run(tmp_path / str(seed), seed=seed, rows=rows)
  arm = runs.find([str(tmp_path)])
  fig = figures.gradient_depth({"ViT": arm}, last_steps=20)
  ax = fig.axes[0]
  # Steps 20 and 30: mean norm 2 of the embedding in one run, 6 in the other.
  np.testing.assert_allclose(ax.lines[0].get_ydata(), [4.0, 8.0, 16.0])
  band = ax.collections[0].get_paths()[0].vertices
  np.testing.assert_allclose((band.min(0)[1], band.max(0)[1]), (2.0, 24.0))
  labels = [tick.get_text() for tick in ax.get_xticklabels()]
  assert labels == ["embedding", "1", "2"]


def test_scale_maps_unfold_row_column_channel():
  scale = np.arange(2 * 3 * 3, dtype=np.float32)
  fig = figures.scale_maps({"seed 0": scale}, (2, 3))
  images = [ax.images[0] for ax in fig.axes if ax.images]
  assert len(images) == 3
  for channel, image in enumerate(images):
    assert image.origin == "upper"
    expected = [
      [(row * 3 + col) * 3 + channel for col in range(3)] for row in range(2)
    ]
    np.testing.assert_array_equal(image.get_array(), expected)
  labels = [image.axes.get_ylabel() for image in images]
  assert labels == ["red", "green", "blue"]


def test_scale_maps_share_colours_around_one():
  scales = {"a": np.array([1.0, 1.5]), "b": np.array([0.25, 1.0])}
  fig = figures.scale_maps(scales, (1, 2))
  limits = {ax.images[0].get_clim() for ax in fig.axes if ax.images}
  assert limits == {(0.25, 1.75)}
  titles = [ax.get_title() for ax in fig.axes if ax.images]
  assert titles == ["a", "b"]


def test_scale_of_another_patch_size_is_refused():
  with pytest.raises(ValueError, match=r"\(7,\) for patches of 2×3"):
    figures.scale_maps({"seed 0": np.ones(7)}, (2, 3))
