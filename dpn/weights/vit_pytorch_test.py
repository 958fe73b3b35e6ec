"""vit-pytorch's own models, where it is installed, and what their files say."""

import json

import jax
import numpy as np
import pytest
import safetensors.numpy

from dpn.models import vit
from dpn.scripts import convert
from dpn.weights import conftest as testing
from dpn.weights import vit_params

SIZE = {"patch_size": (3, 3), "depth": 2, "num_heads": 2, "num_classes": 5}
SINCOS = {"posemb": "sincos2d"}
KINDS = {
  "tok": ("vit_pytorch", {"pool_type": "tok"}),
  "mean": ("vit_pytorch", {"pool_type": "gap"}),
  "row": ("vit_pytorch", {"pool_type": "tok", "posemb_join_kw": {"cls": True}}),
  "fixed": ("vit_pytorch", {"pool_type": "gap", "posemb": "sincos2d"}),
  "one head": ("vit_pytorch", {"pool_type": "tok", "num_heads": 1}),
  "eps": ("vit_pytorch", {"norm_kw": {"eps": 1e-3}, "stem_eps": 1e-2}),
  "no head": ("vit_pytorch", {"num_classes": None}),
  "simple": ("simple_vit", SINCOS),
  "simple, no head": ("simple_vit", {**SINCOS, "num_classes": None}),
}
OURS = {
  **{"width": 8, "mlp_dim": 12, "stem_ln": "dpn", "gelu": "exact"},
  **{"norm_kw": {"eps": 1e-5}, "stem_eps": 1e-5, "qkv_bias": False},
}


def random(shape, seed=0):
  return 0.3 * np.random.RandomState(seed).randn(*shape).astype(np.float32)


def torch_model(title, args, seed=0):
  """Returns a model of vit-pytorch with random parameters of all kinds."""
  vit_pytorch = pytest.importorskip("vit_pytorch")
  classes = {"ViT": vit_pytorch.ViT, "SimpleViT": vit_pytorch.SimpleViT}
  return testing.randomized(classes[title](**args), seed)


def save(model, path):
  save_file = pytest.importorskip("safetensors.torch").save_file
  save_file(model.state_dict(), path)
  return str(path)


PLAIN = {"depth": 2, "mlp_dim": 12, "num_classes": 5, "dim": 8}


@pytest.mark.parametrize(
  ("title", "args", "told"),
  [
    ("ViT", {"heads": 2}, {}),
    ("ViT", {"heads": 2, "pool": "mean"}, {}),
    ("ViT", {"heads": 1, "dim_head": 8}, {}),
    ("ViT", {"heads": 1, "dim_head": 24}, {"num_heads": 1}),
    ("ViT", {"heads": 3, "dim_head": 5, "channels": 1}, {"num_heads": 3}),
    ("ViT", {"heads": 2, "depth": 1, "num_classes": 0}, {}),
    (
      "ViT",
      {"heads": 2, "image_size": (8, 12), "patch_size": (2, 6), "channels": 5},
      {"patch_size": (2, 6), "posemb_join": "add"},
    ),
    ("SimpleViT", {"heads": 2}, {}),
    (
      "SimpleViT",
      {"heads": 1, "dim_head": 8, "image_size": (6, 9), "dim": 12},
      {"num_heads": 1},
    ),
  ],
)
def test_theirs_in_ours_and_back(tmp_path, title, args, told):
  args = {**PLAIN, "image_size": 9, "patch_size": 3, **args}
  theirs = torch_model(title, args)
  path = save(theirs, tmp_path / "theirs.safetensors")
  model, variables, _ = vit.from_pretrained(path, **told)
  rows, cols = np.broadcast_to(args["image_size"], 2)
  image = random((2, rows, cols, args.get("channels", 3)))
  image[0] *= 1e-3  # where LN0's epsilon shows
  got, out = jax.jit(model.apply)(variables, image)
  want = testing.run_torch(theirs, image)
  if not args["num_classes"]:
    got = out["encoded"]
  np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
  # Back, by what the first conversion says alone.
  ours = str(tmp_path / "ours.safetensors")
  convert.convert(path, ours, "ours", options=told)
  to = {"ViT": "vit_pytorch", "SimpleViT": "simple_vit"}[title]
  back = str(tmp_path / "back.safetensors")
  convert.convert(ours, back, to)
  load_file = pytest.importorskip("safetensors.torch").load_file
  state, wanted = load_file(back), theirs.state_dict()
  assert state.keys() == wanted.keys()
  again = torch_model(title, args, seed=1)
  again.load_state_dict(state, strict=True)
  np.testing.assert_allclose(
    testing.run_torch(again, image), want, rtol=1e-5, atol=1e-5
  )


@pytest.mark.filterwarnings("ignore:Initializing zero-element")
@pytest.mark.parametrize("kind", KINDS)
def test_ours_in_theirs(tmp_path, kind):
  to, options = KINDS[kind]
  options = {**SIZE, **OURS, **options}
  model = vit.Model(**options)
  shapes = testing.shapes_of(model)
  params = jax.tree.map(lambda s: random(s.shape, s.size), shapes)
  attention = [
    b["MultiHeadDotProductAttention_0"]["out"]
    for name, b in params["Transformer"].items()
    if name.startswith("encoderblock")
  ]
  for out in attention:
    if to == "simple_vit":
      out["bias"][:] = 0
    if options["num_heads"] == 1:
      out["bias"][:] = 0
      out["kernel"][:] = np.eye(8).reshape(1, 8, 8)
  path = testing.save(tmp_path / "a.safetensors", model, params)
  target = str(tmp_path / "b.safetensors")
  image = random((2, 9, 9, 3), 3)
  want, out = jax.jit(model.apply)({"params": params}, image)
  kw = {"resolution": 9, "extra_modules": kind == "eps"}
  notes = convert.convert(path, target, to, **kw)
  [made] = [x for x in notes if x.startswith("vit_pytorch.")]
  args = eval(made.partition("**")[2].removesuffix(")"))
  title = made.partition("(")[0].rpartition(".")[2]
  theirs = torch_model(title, args)
  load_file = pytest.importorskip("safetensors.torch").load_file
  theirs.load_state_dict(load_file(target), strict=True)
  torch = pytest.importorskip("torch")
  for note in notes:
    if note.startswith("[setattr"):
      exec(note, {"model": theirs, "torch": torch})
  if kind == "no head":
    want = out["encoded"]
  got = testing.run_torch(theirs, image)
  if kind != "simple, no head":
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def state(**changed):
  """Returns arrays as in a file of a ViT with 9 patches of 3×3 px."""
  block = {
    **{"0.norm.weight": (8,), "0.norm.bias": (8,), "0.to_qkv.weight": (384, 8)},
    **{"0.to_out.0.weight": (8, 128), "0.to_out.0.bias": (8,)},
    **{"1.net.0.weight": (8,), "1.net.0.bias": (8,)},
    **{"1.net.1.weight": (12, 8), "1.net.1.bias": (12,)},
    **{"1.net.4.weight": (8, 12), "1.net.4.bias": (8,)},
  }
  embedding = {
    **{"1.weight": (27,), "1.bias": (27,), "2.weight": (8, 27)},
    **{"2.bias": (8,), "3.weight": (8,), "3.bias": (8,)},
  }
  shapes = {
    **{f"to_patch_embedding.{k}": s for k, s in embedding.items()},
    **{"cls_token": (1, 8), "pos_embedding": (10, 8)},
    **{"mlp_head.weight": (5, 8), "mlp_head.bias": (5,)},
    **{"transformer.norm.weight": (8,), "transformer.norm.bias": (8,)},
    **{f"transformer.layers.0.{k}": s for k, s in block.items()},
    **changed,
  }
  return {k: random(s) for k, s in shapes.items() if s is not None}


def written(tmp_path, flat):
  path = str(tmp_path / "x.safetensors")
  safetensors.numpy.save_file(flat, path)
  return path


def test_what_a_file_says(tmp_path):
  found = vit_params.read(written(tmp_path, state()), {})
  assert found.options["num_heads"] == 2
  assert found.options["head_dim"] == 64
  assert found.options["stem_ln"] == "dpn"
  assert found.options["stem_eps"] == 1e-5
  assert found.options["pool_type"] == "tok"
  assert found.assumed == (
    "gelu='exact'",
    "norm_kw={'eps': 1e-05}",
    "stem_eps=1e-05",
    "block_ln_kw={'sa': 'pre', 'mlp': 'pre', 'post': 'branch'}",
    "patch_size=[3, 3]",
    "num_heads=2",
  )
  path = written(tmp_path, state(cls_token=(0, 8)))
  assert vit_params.read(path, {}).grid is None  # ten patches are no square


def test_a_class_token_of_older_releases(tmp_path):
  """pool='mean' had one, too, which the mean was over."""
  flat = state(cls_token=(1, 1, 8), pos_embedding=(1, 10, 8))
  path = written(tmp_path, flat)
  assert "pool_type='tok'" in vit_params.read(path, {}).assumed
  with pytest.raises(
    ValueError, match="has a class token, but pool_type='gap'"
  ):
    vit_params.read(path, {"pool_type": "gap"})


@pytest.mark.parametrize(
  ("changed", "message"),
  [
    (
      {"to_patch_embedding.2.weight": (8, 30)},
      r"patches have 30 numbers, which are no square of 3 or 1 .*--set patch_s",
    ),
    (
      {"transformer.layers.0.0.to_qkv.weight": (72, 8)},
      r"how many attention heads.*--set num_heads=…, or.*from_pretrained num_",
    ),
    ({"register_tokens": (4, 8)}, r"register_tokens +- +\(4, 8\) +unexpected"),
  ],
)
def test_what_is_asked_for_or_refused(tmp_path, changed, message):
  path = written(tmp_path, state(**changed))
  with pytest.raises(ValueError, match=message):
    vit_params.read(path, {})


def test_what_theirs_cannot_be(tmp_path):
  path, _ = testing.write_ours(tmp_path)
  with pytest.raises(ValueError, match=r"vit-pytorch's ViT has no such.*gelu="):
    convert.convert(path, str(tmp_path / "x.safetensors"), "vit_pytorch")
  path, _ = testing.write_ours(tmp_path, **OURS, num_heads=4)
  target = str(tmp_path / "x.safetensors")
  with pytest.raises(ValueError, match=r"pool_type='tok' \(only gap\)"):
    convert.convert(path, target, "simple_vit")
  path, _ = testing.write_ours(tmp_path, **OURS, **SINCOS, pool_type="gap")
  with pytest.raises(ValueError, match=r"out/bias  \(8,\), which is not zero"):
    convert.convert(path, target, "simple_vit")
  assert json.loads(testing.metadata(path)["model"])["stem_eps"] == 1e-5
