"""What docs/frameworks.md and patch_stats.md show runs; their stems agree."""

import pathlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dpn import trees
from dpn.models import vit
from dpn.scripts import export
from dpn.weights import conftest as weights
from dpn.weights import files

DOCS = pathlib.Path(__file__).parents[1] / "docs"
WIDTH = 8
IMAGES = np.random.RandomState(0).randn(2, 9, 9, 3).astype(np.float32)
IMAGES[1] *= 1e-3  # where epsilon shows


def run(name, space=None, page="frameworks.md"):
  """Returns what the block of this name defines."""
  space = {} if space is None else space
  text = (DOCS / page).read_text()
  [block] = re.findall(rf"```python {name}\n(.*?)```", text, re.S)
  exec(block, space)
  return space


def params():
  """Returns random arrays of a stem with patches of 3×3 pixels, by name."""
  rng = np.random.RandomState(1)
  shapes = {
    **{f"stem/ln0/{leaf}": (27,) for leaf in ("scale", "bias")},
    **{"embedding/kernel": (3, 3, 3, WIDTH), "embedding/bias": (WIDTH,)},
    **{f"stem/ln1/{leaf}": (WIDTH,) for leaf in ("scale", "bias")},
  }
  return {k: rng.randn(*s).astype(np.float32) for k, s in shapes.items()}


def patches():
  x = IMAGES.reshape(2, 3, 3, 3, 3, 3).transpose(0, 1, 3, 2, 4, 5)
  return x.reshape(2, 9, 27)


NO_STATS = np.zeros((2, WIDTH))


def wanted(patch_stats=NO_STATS):
  """Returns the tokens in double precision."""
  p = {k: np.float64(x) for k, x in params().items()}
  x = np.float64(patches())
  stats = np.stack([x.mean(-1), x.std(-1)], -1) @ patch_stats

  def norm(x, name):
    std = np.sqrt(x.var(-1, keepdims=True) + 1e-6)
    y = (x - x.mean(-1, keepdims=True)) / std
    return y * p[f"stem/{name}/scale"] + p[f"stem/{name}/bias"]

  kernel = p["embedding/kernel"].reshape(27, WIDTH)
  return norm(norm(x, "ln0") @ kernel + p["embedding/bias"] + stats, "ln1")


def check(got, patch_stats=NO_STATS):
  want = wanted(patch_stats)
  np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def test_linen():
  stem = run("linen")["Stem"](3, WIDTH)
  tree = trees.unflatten(params())
  check(stem.apply({"params": tree}, IMAGES))


def test_nnx():
  from flax import nnx

  stem = run("nnx")["Stem"](3, WIDTH, rngs=nnx.Rngs(0))
  p = params()
  for name in ("ln0", "ln1"):
    for leaf in ("scale", "bias"):
      setattr(getattr(stem, name), leaf, nnx.Param(p[f"stem/{name}/{leaf}"]))
  stem.embedding.kernel = nnx.Param(p["embedding/kernel"].reshape(27, WIDTH))
  stem.embedding.bias = nnx.Param(p["embedding/bias"])
  check(stem(jnp.asarray(IMAGES)))


def test_equinox():
  eqx = pytest.importorskip("equinox")
  stem = run("equinox")["Stem"](3, WIDTH, key=jax.random.key(0))
  p = params()
  arrays = lambda s: [x for y in s.layers for x in (y.weight, y.bias)]
  kernel = p["embedding/kernel"].reshape(27, WIDTH).T
  lns = [*_lns(p, "ln0", "ln1").values()]
  values = [*lns[:2], kernel, p["embedding/bias"], *lns[2:]]
  stem = eqx.tree_at(arrays, stem, [jnp.asarray(x) for x in values])
  check(jax.vmap(stem)(jnp.asarray(IMAGES)))


def _lns(p, *theirs):
  """Returns both LayerNorms by PyTorch's names of them."""
  return {
    f"{name}.{leaf}": p[f"stem/ln{i}/{ours}"]
    for i, name in enumerate(theirs)
    for leaf, ours in (("weight", "scale"), ("bias", "bias"))
  }


def test_torch():
  torch = pytest.importorskip("torch")
  stem = run("torch")["Stem"](3, WIDTH)
  p = params()
  kernel = p["embedding/kernel"].reshape(27, WIDTH).T.copy()
  state = _lns(p, "1", "3")
  state |= {"2.weight": kernel, "2.bias": p["embedding/bias"]}
  stem.load_state_dict({k: torch.from_numpy(x) for k, x in state.items()})
  images = torch.from_numpy(IMAGES.transpose(0, 3, 1, 2).copy())
  check(stem(images).detach().numpy())


@jax.numpy_rank_promotion("allow")
def test_patch_stats():
  p = params()
  own = np.random.RandomState(2).randn(2, WIDTH).astype(np.float32)
  lns = {
    ln: [p[f"stem/{ln}/{leaf}"] for leaf in ("scale", "bias")]
    for ln in ("ln0", "ln1")
  }
  given = {
    **{"kernel": p["embedding/kernel"].reshape(27, WIDTH), **lns},
    **{"bias": p["embedding/bias"], "patch_stats": own},
  }
  stem = run("jax", page="patch_stats.md")["stem"]
  check(stem(jnp.asarray(patches()), given), own)
  # As a model has it; a constant patch has gradients.
  options = {"patch_size": (3, 3), "width": WIDTH, "pool_type": "gap"}
  model = vit.Model(3, **options, variant="mu/3", stem_ln="patch_stats")
  tree = model.init(jax.random.key(0), IMAGES)["params"]
  tree |= trees.unflatten({**p, "patch_stats/kernel": own})
  _, out = model.apply({"params": tree}, IMAGES)
  check(out["stem"].reshape(2, 9, WIDTH), own)
  flat = jax.grad(lambda x: stem(x, given)[0, 0, 0])(jnp.ones((1, 1, 27)))
  assert np.isfinite(flat).all()


def test_patch_stats_in_torch():
  torch = pytest.importorskip("torch")
  stem = run("torch", page="patch_stats.md")["Stem"](27, WIDTH)
  p = params()
  own = np.random.RandomState(2).randn(2, WIDTH).astype(np.float32)
  state = _lns(p, "ln0", "ln1") | {
    "embedding.weight": p["embedding/kernel"].reshape(27, WIDTH).T.copy(),
    "embedding.bias": p["embedding/bias"],
    "stats.weight": own.T.copy(),
  }
  stem.load_state_dict({k: torch.from_numpy(x) for k, x in state.items()})
  check(stem(torch.from_numpy(patches())).detach().numpy(), own)
  constant = torch.ones(1, 1, 27, requires_grad=True)
  stem(constant).sum().backward()
  assert constant.grad.isfinite().all()


def test_a_whole_model(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  path, before = weights.write_ours(tmp_path)
  pathlib.Path(path).rename("mine.safetensors")
  space = run("nnx-model")
  # One step of gradient descent, as without the bridge.
  model = space["linen"]

  def loss(params):
    logits, _ = model.apply({"params": params}, space["images"], train=True)
    return optax.softmax_cross_entropy_with_integer_labels(
      logits, space["labels"]
    ).mean()

  value, grads = jax.value_and_grad(loss)(before)
  assert space["loss"] == pytest.approx(float(value), rel=1e-5)
  want = jax.tree.map(lambda x, g: x - 0.1 * g, before, grads)
  jax.tree.map(
    lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5),
    want,
    space["trained"],
  )
  files.save_params("again.safetensors", space["trained"])
  pytest.importorskip("flatbuffers")
  export.main(["mine.safetensors", "mine.stablehlo"])
  images = np.ones((3, 9, 9, 3), np.float32)
  got = run("stablehlo", {"images": images})["logits"]
  plain = vit.from_pretrained("mine.safetensors")
  want = plain.model.apply(plain.variables, images)[0]
  np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
