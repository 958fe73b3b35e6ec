"""What is drawn is what was logged."""

import numpy as np
import pandas as pd
import pytest

from dpn.scripts import conftest as testing
from dpn.scripts.results import aggregate, measures, plots, run_files


def test_curves_of_two_runs_are_the_runs_and_their_mean():
  arm = pd.DataFrame([[20, 60], [40, 80]], columns=[10, 20])
  fig = plots.lines({"B/16": {"ViT": arm}}, "step", "accuracy [%]")
  lines = fig.axes[0].lines
  assert [line.get_xdata().tolist() for line in lines] == [[10, 20]] * 3
  np.testing.assert_allclose(
    [line.get_ydata() for line in lines], [[20, 60], [40, 80], [30, 70]]
  )
  assert lines[2].get_linewidth() > lines[0].get_linewidth()
  assert fig.axes[0].get_ylabel() == "accuracy [%]"
  assert fig.axes[0].get_title() == "B/16"
  assert [t.get_text() for t in fig.axes[0].get_legend().texts] == ["ViT"]


def test_curves_of_three_runs_have_a_band():
  arm = pd.DataFrame([[0.96], [0.97], [0.98]])
  ax = plots.lines({"": {"ViT": arm}}, "step", "accuracy").axes[0]
  (line,) = ax.lines
  np.testing.assert_allclose(line.get_ydata(), [0.97])
  band = ax.collections[0].get_paths()[0].vertices
  # 4.303 · 0.01 / √3 = 0.02484 around the mean.
  limits = (band.min(0)[1], band.max(0)[1])
  np.testing.assert_allclose(limits, (0.9452, 0.9948), atol=1e-4)


def test_an_arm_keeps_its_colour_in_every_panel():
  arms = {name: pd.DataFrame([[1.0, 0.5]]) for name in ("none", "dpn")}
  panels = {"a": arms, "b": {"dpn": arms["dpn"]}}
  first, second = plots.lines(panels, "step", "loss").axes
  none, dpn = (line.get_color() for line in first.lines)
  assert none != dpn
  assert second.lines[0].get_color() == dpn


def test_of_many_arms_each_has_a_panel_with_the_first_behind_it():
  pair = pd.DataFrame([[1.0, 0.5], [3.0, 1.5]])
  arms = {f"arm {i}": pair + i for i in range(len(plots.COLOURS) + 1)}
  axes = plots.lines({"B/16": arms}, "step", "loss").axes
  assert [ax.get_title() for ax in axes] == [*arms]
  # Two runs and their mean, of the first arm and of the panel's own.
  last = [line.get_ydata().tolist() for line in axes[-1].lines]
  first = [[1, 0.5], [3, 1.5], [2, 1]]
  assert last == [*first, *([a + 8, b + 8] for a, b in first)]


def test_where_an_evaluation_failed_the_curve_has_no_point(tmp_path):
  for seed, values in enumerate([{10: 0.2, 20: 0.3}, {10: 0.4}]):
    rows = [{"step": step, "accuracy": x} for step, x in values.items()]
    testing.write_run(tmp_path / str(seed), seed=seed, rows=rows)
  found = measures.by_step(run_files.find([str(tmp_path)]), "accuracy")
  assert found.to_dict("list") == {10: [0.2, 0.4]}
  testing.write_run(tmp_path / "2", rows=[{"step": 5, "accuracy": 0.1}])
  with pytest.raises(ValueError, match="'accuracy' at no step that all have"):
    measures.by_step(run_files.find([str(tmp_path)]), "accuracy")


def test_gradient_depth_is_what_was_logged_last(tmp_path):
  for seed, factor in enumerate((1.0, 4.0)):
    rows = [
      {
        "step": step,
        "grad_norm/block01": 4 * factor * norm,
        "grad_norm/block00": 2 * factor * norm,
        "grad_norm/embedding": factor * norm,
      }
      for step, norm in [(10, 100.0), (30, 2.0)]
    ]
    testing.write_run(tmp_path / str(seed), seed=seed, rows=rows)
  arm = run_files.find([str(tmp_path)])
  panels = {"": {"ViT": measures.norms_by_depth(arm, "grad_norm")}}
  fig = plots.lines(panels, "depth", "norm", depth=True, log=True)
  ax = fig.axes[0]
  # Norm 2 of the embedding in one run, 8 in the other; on a logarithmic axis
  # their mean is 4, on a linear one 5.
  norms = [line.get_ydata() for line in ax.lines]
  expected = [[2, 4, 8], [8, 16, 32], [4, 8, 16]]
  np.testing.assert_allclose(norms, expected)
  labels = [tick.get_text() for tick in ax.get_xticklabels()]
  assert labels == ["E", "1", "2"]
  ax = plots.lines(panels, "depth", "norm", depth=True).axes[0]
  np.testing.assert_allclose(ax.lines[-1].get_ydata(), [5, 10, 20])
  shown = ax.get_yscale(), ax.get_ylim()[0], ax.get_ylabel()
  assert shown == ("linear", 0, "norm")


def test_gains_are_dots_with_intervals_beside_the_papers():
  nan = float("nan")
  ours = {
    "B/16": {
      "pre": aggregate.Estimate(-0.5, 0.2, 3),
      "post": aggregate.Estimate(1.0, nan, 1),
      "tract": aggregate.Estimate(1.0, 12.7, 2, pair=(0.0, 2.0)),
      "rmsnorm": "not run",
    }
  }
  paper = {"B/16": {"pre": aggregate.Estimate(-0.1, nan, 1)}}
  ax = plots.gains(ours, paper, "gain [points]").axes[0]
  drawn = lambda marker: [x for x in ax.lines if x.get_marker() == marker]
  dots = drawn("o")
  points = [line.get_xydata()[0].tolist() for line in dots]
  assert points == [[-0.5, 0], [1.0, 1], [1.0, 2]]
  # Only three runs have an interval; two are drawn themselves.
  [whiskers] = ax.containers
  segments = whiskers.lines[2][0].get_segments()
  np.testing.assert_allclose(segments, [[[-0.7, 0], [-0.3, 0]]])
  [seeds] = drawn("|")
  assert seeds.get_xdata().tolist() == [0.0, 2.0]
  [diamonds] = drawn("D")
  np.testing.assert_allclose(diamonds.get_xdata(), [-0.1, nan, nan, nan])
  texts = [text.get_text() for text in ax.texts]
  assert texts == ["n=3", "n=1", "n=2", "not run"]
  assert ax.get_ylim() == (3.5, -0.5)  # also of the row that was not run
  labels = [tick.get_text() for tick in ax.get_yticklabels()]
  assert labels == ["pre", "post", "tract", "rmsnorm"]


def test_scale_maps_unfold_row_column_channel():
  scale = np.arange(2 * 3 * 3, dtype=np.float32)
  fig = plots.scale_maps({"seed 0": scale.reshape(2, 3, 3)})
  images = [ax.images[0] for ax in fig.axes if ax.images]
  assert len(images) == 3
  for channel, image in enumerate(images):
    assert image.origin == "upper"
    expected = [
      [(row * 3 + col) * 3 + channel for col in range(3)] for row in range(2)
    ]
    np.testing.assert_array_equal(image.get_array(), expected)
  labels = [image.axes.get_title() for image in images]
  assert labels == ["red", "green", "blue"]


def test_scale_maps_share_colours_around_one():
  scales = {"a": np.array([1.0, 1.5]), "b": np.array([0.25, 1.0])}
  fig = plots.scale_maps({k: v.reshape(1, 2, 1) for k, v in scales.items()})
  limits = {ax.images[0].get_clim() for ax in fig.axes if ax.images}
  assert limits == {(0.25, 1.75)}
  titles = [ax.get_ylabel() for ax in fig.axes if ax.images]
  assert titles == ["a", "b"]


def test_dollars_in_names_are_dollars(tmp_path):
  name = r"$\frac$ and $x_{"
  arm = pd.DataFrame([[1.0, 0.5]])
  dots = {name: {name: aggregate.Estimate(1.0)}}
  for fig in (
    plots.lines({name: {name: arm}, "b": {name: arm}}, name, name),
    plots.gains(dots, {}, name),
    plots.scale_maps({name: np.ones((1, 1, 3))}),
  ):
    fig.savefig(tmp_path / "x.png")  # as mathematics it would not parse
