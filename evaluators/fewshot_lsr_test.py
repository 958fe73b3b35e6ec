"""The probe against independent solvers, its draw against NumPy's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg

from dpn import trees
from dpn.evaluators import fewshot_lsr


def _data(examples, width, num_classes):
  """Returns overlapping classes of correlated features, train and test."""
  rng = np.random.default_rng(0)
  centers = 0.5 * rng.normal(size=(num_classes, width))
  mix = rng.normal(size=(width, width)) / np.sqrt(width)
  y = rng.integers(0, num_classes, examples + 500)
  x = (centers[y] + rng.normal(size=(len(y), width))) @ mix
  x = (x * rng.uniform(0.01, 3, width) + 2).astype(np.float32)
  return x[:examples], y[:examples], x[examples:], y[examples:]


def _design(x, x_train):
  x, x_train = np.float64(x), np.float64(x_train)
  x = (x - x_train.mean(0)) / (x_train.std(0) + 1e-5)
  return np.concatenate([x, np.full((len(x), 1), 100.0)], axis=1)


def _lstsq(x, y, x_test, num_classes, l2_reg):
  """Ridge as least squares with sqrt(l2) I appended to the design matrix."""
  design, targets = _design(x, x), 2 * np.eye(num_classes)[y] - 1
  dim = design.shape[1]
  a = np.concatenate([design, np.sqrt(l2_reg) * np.eye(dim)])
  b = np.concatenate([targets, np.zeros((dim, num_classes))])
  weights = scipy.linalg.lstsq(a, b)[0]
  return np.argmax(_design(x_test, x) @ weights, axis=1)


def _eigh(x, y, x_test, num_classes, l2_reg):
  """Ridge from the eigenvectors of the Gram matrix of the examples."""
  design, targets = _design(x, x), 2 * np.eye(num_classes)[y] - 1
  values, vectors = np.linalg.eigh(design @ design.T)
  dual = (vectors / (values + l2_reg)) @ (vectors.T @ targets)
  return np.argmax(_design(x_test, x) @ (design.T @ dual), axis=1)


# More examples than features, fewer, and the two sides of the boundary.
@pytest.mark.parametrize("examples", [300, 40, 64, 65])
@pytest.mark.parametrize("l2_reg", [1.0, 1024.0])
@pytest.mark.parametrize("solver", [_lstsq, _eigh])
def test_against_other_solvers(examples, l2_reg, solver):
  x, y, x_test, y_test = _data(examples, 64, 10)
  expected = solver(x, y, x_test, 10, l2_reg)
  got = fewshot_lsr.fit(x, y, 10, l2_reg)(x_test)
  np.testing.assert_array_equal(got, expected)
  accuracy = fewshot_lsr.fit_and_score(x, y, x_test, y_test, 10, l2_reg)
  assert accuracy == np.mean(expected == y_test)
  assert 0.15 < accuracy < 1.0  # Neither chance nor trivial.


def test_separable_classes_and_constant_features():
  """Features without variance, as of a collapsed model, do no harm."""
  rng = np.random.default_rng(0)
  y = np.repeat(np.arange(5), 4)
  x = np.eye(5)[y] + 0.01 * rng.normal(size=(20, 5))
  x = np.concatenate([x, np.full((20, 3), 0.1)], axis=1).astype(np.float32)
  assert fewshot_lsr.fit_and_score(x, y, x, y, 5, 1.0) == 1.0
  # With nothing to tell classes apart, the most frequent one is the answer.
  y = np.array([2] * 8 + [0] * 7 + [1] * 5)
  x = np.ones((20, 3), np.float32)
  assert fewshot_lsr.fit_and_score(x, y, x, y, 3, 1.0) == 0.4


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("shots", [1, 5, 25])
def test_choose_shots_draws_as_big_vision(seed, shots):
  labels = np.random.default_rng(7).integers(0, 10, 400)
  rng = np.random.default_rng(seed)
  drawn = [rng.permutation(np.where(labels == c)[0]) for c in range(10)]
  expected = np.concatenate([indices[:shots] for indices in drawn])
  got = fewshot_lsr.choose_shots(labels, 10, shots, seed)
  np.testing.assert_array_equal(got, expected)
  assert np.bincount(labels[got]).tolist() == [shots] * 10


def test_choose_shots_of_small_and_empty_classes(monkeypatch):
  said = []
  monkeypatch.setattr(
    trees.logging, "warning", lambda text, *args: said.append(text % args)
  )
  labels = np.array([3, 1, 3, 3, 0, 0, 3])
  got = fewshot_lsr.choose_shots(labels, 5, 2, seed=0)
  assert labels[got].tolist() == [0, 0, 1, 3, 3]
  fewshot_lsr.choose_shots(labels, 5, 2, seed=1)
  assert said == ["3 classes have fewer than 2 examples: 1, 2, 4."]
  with pytest.raises(ValueError, match="Got a label -1, expected classes"):
    fewshot_lsr.choose_shots(labels - 1, 5, 2, seed=0)


@pytest.mark.parametrize(
  ("change", "message"),
  [
    ({"l2_reg": 0.0}, "l2_reg=0.0, expected a positive number"),
    ({"x_test": np.full((3, 2), np.nan)}, "A feature is not finite"),
    ({"num_classes": 2}, r"from 0 to 2, expected integers in \[0, 2\)"),
    ({"y_test": np.zeros(3)}, "float64 labels from 0.0 to 0.0, expected integ"),
    ({"y_train": np.array([0, 1])}, r"features \(3, 2\) and labels \(2,\)"),
    ({"x_test": np.zeros((0, 2)), "y_test": np.zeros(0, int)}, "one example"),
  ],
)
def test_errors(change, message):
  x, y = np.arange(6.0).reshape(3, 2), np.arange(3)
  kw = {"x_train": x, "y_train": y, "x_test": x, "y_test": y}
  kw |= {"num_classes": 3, "l2_reg": 1.0}
  with pytest.raises(ValueError, match=message):
    fewshot_lsr.fit_and_score(**(kw | change))


# 4 classes; the images are the features; no batch divides the sizes.
X, Y, X_TEST, Y_TEST = (a[:75] for a in _data(75, 6, 4))


@pytest.fixture(name="data", scope="module")
def _npz(tmp_path_factory):
  path = tmp_path_factory.mktemp("fewshot") / "data.npz"
  arrays = {"train/image": X, "train/label": Y}
  np.savez(path, **arrays, **{"test/image": X_TEST, "test/label": Y_TEST})
  return f"arrays:{path}"


def _predict(variables, batch):
  """Returns features, NaN where there is no image, and some constants."""
  x = batch["image"]
  size = jnp.abs(x).sum(axis=-1, keepdims=True)
  x = variables["params"] * x * (size / size)
  encoder = {"block00": {"tokens": x[:, None], "cls": x[:, :1] * 0}}
  return None, {"pre_logits": x, "encoder": encoder}


def _evaluator(data, devices=4, batch_size=8, pp="", **kw):
  mesh = jax.sharding.Mesh(jax.devices()[:devices], ("data",))
  kw = {"shots": (1, 5), "l2_reg": 2.0, "num_seeds": 3, **kw}
  of_data = {"pp_train": pp, "pp_eval": pp, "batch_size": batch_size}
  of_data["datasets"] = {"toy": (data, "train", "test")}
  of_data["data_dir"] = "/tfds"  # means nothing to these data
  return fewshot_lsr.Evaluator(_predict, mesh=mesh, **of_data, **kw)


def _run(data, *args, **kw):
  return _evaluator(data, *args, **kw).run({"params": jnp.float32(1)})


def _want(y, y_test):
  """Returns the metrics, from the functions tested above."""
  want = {}
  for shots in (1, 5):
    scores = []
    for seed in range(3):
      few = fewshot_lsr.choose_shots(y, 4, shots, seed)
      args = (X[few], y[few], X_TEST, y_test, 4, 2.0)
      scores.append(fewshot_lsr.fit_and_score(*args))
      want[f"toy_{shots}shot-seed-{seed}"] = scores[-1]
    want[f"toy_{shots}shot"] = sum(scores) / 3
  return want


@pytest.mark.parametrize(
  ("devices", "batch_size"), [(4, 8), (4, 76), (1, 75), (1, 13)]
)
def test_evaluator_scores_every_example_once(data, devices, batch_size):
  got, want = _run(data, devices, batch_size), _want(Y, Y_TEST)
  assert got == pytest.approx(want, abs=1e-12)
  assert len(set(want.values())) > 4  # The seeds do differ.


@pytest.mark.parametrize(
  "kw", [{"label_key": "fine"}, {"pp": 'copy("fine", "label")'}]
)
def test_more_classes_than_the_source_knows(tmp_path, kw):
  arrays = {"train/image": X, "train/label": Y // 2, "train/fine": Y}
  arrays |= {"test/image": X_TEST, "test/label": Y_TEST // 2}
  np.savez(tmp_path / "two.npz", **arrays, **{"test/fine": Y_TEST})
  got = _run(f"arrays:{tmp_path}/two.npz", **kw)
  assert got == pytest.approx(_want(Y, Y_TEST), abs=1e-12)


@pytest.mark.parametrize("kw", [{"num_seeds": 0}, {"shots": (1, 0)}])
def test_nothing_to_learn_from(data, kw):
  with pytest.raises(ValueError, match=r"num_seeds=.*, expected 1 or more"):
    _evaluator(data, **kw)


def test_evaluator_of_another_layer(data):
  got = _run(data, representation_layer="encoder/block00/cls", num_seeds=1)
  # A constant: of 5 examples each, the first class is as good as any.
  assert got["toy_5shot"] == np.mean(Y_TEST == 0)


@pytest.mark.parametrize(
  ("layer", "message"),
  [
    (
      "pre_logit",
      "'pre_logit'. Did you mean 'pre_logits'. Known: encoder, pre",
    ),
    (
      "encoder/block01",
      "Unknown representation_layer 'encoder/block01'.*block00",
    ),
    ("pre_logits/x", "Unknown representation_layer 'pre_logits/x'"),
    (
      "encoder/block00/tokens",
      r"holds \(8, 1, 6\); expected one array \(batch, width\). Choose one",
    ),
    ("encoder", "'encoder' holds .'block00'.; .* a group's after a slash"),
  ],
)
def test_evaluator_names_what_layers_there_are(data, layer, message):
  with pytest.raises(ValueError, match=message):
    _run(data, representation_layer=layer)


def test_a_wrong_label_key_is_named_before_the_run(data):
  with pytest.raises(ValueError, match=r"label_key 'labels'.*mean 'label'"):
    _evaluator(data, label_key="labels").check({"params": jnp.float32(1)})
  with pytest.raises(ValueError, match=r"'image' of each .*expected one integ"):
    _evaluator(data, label_key="image").check({"params": jnp.float32(1)})
