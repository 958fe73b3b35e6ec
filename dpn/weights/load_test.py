"""Files as big_vision wrote them, in all its layouts, and files that misfit.

testdata/big_vision_vit.npz holds parameters and logits of big_vision's model.
"""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpn import trees
from dpn.models import vit
from dpn.weights import conftest as testing
from dpn.weights import files, load


def pre_linen(name):
  """Returns the name from when Flax counted all modules of a parent."""
  if "encoderblock" not in name:
    return name
  for new, old in (
    ("MultiHeadDotProductAttention_0", "MultiHeadDotProductAttention_1"),
    ("LayerNorm_1", "LayerNorm_2"),
    ("MlpBlock_0", "MlpBlock_3"),
  ):
    name = name.replace(new, old)
  return name


def inline_map(name):
  return name.replace("MAPHead_0/", "")


def inline_map_pre_linen(name):
  if not name.startswith("MAPHead_0/"):
    return pre_linen(name)
  return inline_map(name).replace("MlpBlock_0", "MlpBlock_2")


def posemb_in(parent):
  return lambda name: name.replace("pos_embedding", f"{parent}/pos_embedding")


LAYOUTS = {
  "pre-linen": ("tok", pre_linen),
  "posembed_input": ("tok", posemb_in("Transformer/posembed_input")),
  "posemb in Transformer": ("tok", posemb_in("Transformer")),
  "MAP inline": ("map", inline_map),
  "MAP inline, pre-linen": ("map", inline_map_pre_linen),
}


@pytest.mark.parametrize("kind", ["tok", "map"])
@pytest.mark.parametrize("scan", [False, True])
@pytest.mark.parametrize("scanned_file", [False, True])
def test_scanned_and_separate_blocks(tmp_path, kind, scan, scanned_file):
  flat = testing.golden(kind)
  path = testing.write(tmp_path, testing.stack(flat) if scanned_file else flat)
  got = testing.read(path, testing.shapes(kind=kind, scan=scan))
  testing.assert_equal(got, testing.stack(flat) if scan else flat)


def test_more_than_ten_blocks_keep_their_order(tmp_path):
  flat = {
    f"Transformer/encoderblock_{i}/bias": np.full((2,), i, np.float32)
    for i in reversed(range(12))
  }
  wanted = {"Transformer": {"encoderblock": {"bias": np.zeros((12, 2))}}}
  got = testing.read(testing.write(tmp_path, flat), wanted)
  np.testing.assert_array_equal(
    got["Transformer"]["encoderblock"]["bias"][:, 0], range(12)
  )
  looped = testing.read(testing.write(tmp_path, flat), trees.unflatten(flat))
  testing.assert_equal(looped, flat)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_historical_layouts(tmp_path, layout):
  kind, rename = LAYOUTS[layout]
  flat = testing.golden(kind)
  old = {rename(name): x for name, x in flat.items()}
  assert old.keys() != flat.keys()
  path = testing.write(tmp_path, old, prefix="opt/target/")
  testing.assert_equal(testing.read(path, testing.shapes(kind=kind)), flat)


@pytest.mark.parametrize(
  ("kind", "rows_px", "cols_px", "count", "has_row"),
  [
    *(("tok", 12, 12, 10, True), ("map", 12, 12, 10, True)),  # 3 x 3 and one
    *(("tok", 8, 12, 7, True), ("tok", 8, 20, 10, False)),  # 2 x 3, 2 x 5
  ],
)
def test_class_token_in_position_embedding(
  tmp_path, kind, rows_px, cols_px, count, has_row
):
  rows = np.random.RandomState(0).randn(1, count, 16).astype(np.float32)
  flat = {**testing.golden(kind), "pos_embedding": rows}
  path = testing.write(tmp_path, flat)
  got = testing.read(path, testing.shapes(rows_px, cols_px, kind))
  want = dict(flat)
  if has_row:
    want["pos_embedding"] = rows[:, 1:]
    if kind == "tok":
      want["cls"] = flat["cls"] + rows[:, :1]
  testing.assert_equal(got, want)


def test_class_token_is_adjusted_where_positions_are_fixed(tmp_path):
  rows = np.ones((1, 10, 16), np.float32)
  flat = {**testing.golden("tok"), "pos_embedding": rows}
  path = testing.write(tmp_path, flat)
  shapes = testing.shapes(12, 12, posemb="sincos2d")
  got = testing.read(path, shapes, dont_load=["pos_embedding"])
  np.testing.assert_array_equal(got["cls"], flat["cls"] + 1)


@pytest.mark.parametrize(("old", "new"), [(3, 5), (5, 3), (2, 7), (1, 2)])
@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16])
def test_position_embeddings_are_resized_bilinearly(tmp_path, old, new, dtype):
  rows = np.random.RandomState(1).randn(1, old * old, 16).astype(dtype)
  flat = {**testing.golden("tok"), "pos_embedding": rows}
  path = testing.write(tmp_path, flat)
  got = testing.read(path, testing.shapes(4 * new, 4 * new))["pos_embedding"]
  grid = rows.astype(np.float64).reshape(old, old, 16)
  want = testing.bilinear(grid, new)
  np.testing.assert_allclose(got.reshape(want.shape), want, atol=1e-6)


@pytest.mark.parametrize("cls", [False, True])
def test_positions_of_oblong_images_between_pixel_centres(tmp_path, cls):
  """As cv2.resize, PyTorch and jax.image.resize have it."""
  rows = np.random.RandomState(1).randn(1, 4 + cls, 16).astype(np.float32)
  flat = {**testing.golden("tok"), "pos_embedding": rows}
  shapes = testing.shapes(16, 12, posemb_join_kw={"cls": cls})
  options = vit.options(testing.make(posemb_join_kw={"cls": cls}))
  kw = {"options": options, "posemb_align_corners": False}
  path = testing.write(tmp_path, flat)
  got = testing.read(path, shapes, posemb_grid=(4, 3), **kw)["pos_embedding"]
  up, across = np.zeros((4, 2)), np.zeros((3, 2))
  up[:, 1] = 0, 0.25, 0.75, 1
  across[:, 1] = 0, 0.5, 1
  up[:, 0], across[:, 0] = 1 - up[:, 1], 1 - across[:, 1]
  grid = rows[0, cls:].astype(np.float64).reshape(2, 2, 16)
  want = np.einsum("ya,xb,abc->yxc", up, across, grid).reshape(12, 16)
  np.testing.assert_allclose(got[0, cls:], want, atol=1e-6)
  np.testing.assert_array_equal(got[0, :cls], rows[0, :cls])
  with pytest.raises(ValueError, match="not square need posemb_grid"):
    testing.read(path, shapes, **kw)
  with pytest.raises(ValueError, match=r"posemb_grid=\(4, 4\) does not have"):
    testing.read(path, shapes, posemb_grid=(4, 4), **kw)


@pytest.mark.parametrize("scan", [False, True])
def test_positions_of_each_block_are_resized(tmp_path, scan):
  model = {"posemb_join": "unshared"}
  old = trees.flatten(testing.sevens(testing.shapes(8, 8, **model)))
  names = [n for n in old if n.endswith("/pos_embedding")]
  assert [old[n].shape for n in names] == [(1, 1 + 4, 16)] * 2
  for name in names:
    old[name] = np.random.RandomState(1).randn(1, 5, 16).astype(np.float32)
  path = testing.write(tmp_path, old)
  shapes, said = testing.shapes(12, 12, scan=scan, **model), []
  got = testing.read(path, shapes, tell=said.append)
  assert said == [f"the position embeddings of {path} are resized, 2×2 to 3×3."]
  testing.read(path, testing.shapes(8, 8, scan=scan, **model), tell=said.append)
  assert len(said) == 1
  blocks = got["Transformer"]
  last = blocks["encoderblock_1"] if not scan else blocks["encoderblock"]
  last = last["pos_embedding"][1] if scan else last["pos_embedding"]
  row, grid = np.split(old[names[1]][0], [1])
  np.testing.assert_array_equal(last[0, :1], row)
  want = testing.bilinear(grid.reshape(2, 2, 16), 3).reshape(9, 16)
  np.testing.assert_allclose(last[0, 1:], want, atol=1e-6)


def _changed(flat):
  """Returns arrays of which one is renamed and one is shorter."""
  flat["extra"] = flat.pop("cls")
  return {**flat, "head/bias": flat["head/bias"][:3]}


@pytest.mark.parametrize(
  ("change", "model", "rows", "dont_load"),
  [
    (  # 2 x 3 patches are not resized
      dict,
      {"rows_px": 12},
      ["pos_embedding (1, 9, 16) (1, 6, 16) reshaped"],
      ["pos_embedding"],
    ),
    (
      dict,
      {"stem_ln": "dpn"},
      [
        "stem/ln0/bias (48,) - missing",
        "stem/ln0/scale (48,) - missing",
        "stem/ln1/bias (16,) - missing",
        "stem/ln1/scale (16,) - missing",
      ],
      ["stem/.*"],
    ),
    (
      dict,
      {"num_classes": 7},
      ["head/bias (7,) (5,) reshaped", "head/kernel (16, 7) (16, 5) reshaped"],
      ["head/.*"],
    ),
    (
      dict,
      {"num_classes": None},
      ["head/bias - (5,) unexpected", "head/kernel - (16, 5) unexpected"],
      ["head/.*"],
    ),
    (
      _changed,
      {},
      [
        "cls (1, 1, 16) - missing",
        "extra - (1, 1, 16) unexpected",
        "head/bias (5,) (3,) reshaped",
      ],
      ["cls", "extra", "head/bias"],
    ),
  ],
)
def test_all_misfits_in_one_error(tmp_path, change, model, rows, dont_load):
  flat = change(testing.golden("tok"))
  path = testing.write(tmp_path, flat)
  shapes = testing.shapes(**model)
  with pytest.raises(ValueError, match="does not fit the model") as error:
    testing.read(path, shapes)
  _, header, *lines, advice = str(error.value).splitlines()
  assert header.split() == ["parameter", "model", "file"]
  assert [" ".join(line.split()) for line in lines] == rows
  assert f"dont_load={dont_load}." in advice
  params = testing.sevens(shapes)
  got = trees.flatten(testing.read(path, params, dont_load=dont_load))
  assert got.keys() == trees.flatten(params).keys()
  listed = {row.partition(" ")[0] for row in rows}
  for name, x in got.items():
    want = np.full_like(x, 7) if name in listed else flat[name]
    np.testing.assert_array_equal(x, want, err_msg=name)


def test_a_missing_block_and_a_single_pattern(tmp_path):
  flat = {k: x for k, x in testing.golden("tok").items() if "block_0" not in k}
  path, pattern = testing.write(tmp_path, flat), "Transformer/encoderblock_0/.*"
  with pytest.raises(ValueError, match=re.escape(f"dont_load=[{pattern!r}]")):
    testing.read(path, testing.shapes())
  testing.read(path, testing.shapes(), dont_load=pattern)


def test_dtypes_are_the_models(tmp_path):
  flat = {"a": np.float32([1.5]), "b": np.float64([2.5])}
  of = lambda dtype: jax.ShapeDtypeStruct((1,), dtype)
  model = {"a": of(jnp.bfloat16), "b": of(jnp.float32)}
  got = testing.read(testing.write(tmp_path, flat), model)
  assert (got["a"].dtype, got["b"].dtype) == (jnp.bfloat16, np.float32)
  assert (got["a"][0], got["b"][0]) == (1.5, 2.5)


def test_numbers_that_are_not_finite(tmp_path):
  flat = testing.golden("tok")
  name = "head/bias"
  for x, kind in ((np.nan, "NaN or infinity"), (np.int32(1), "int32")):
    flat[name] = np.broadcast_to(x, flat[name].shape)
    path = testing.write(tmp_path, flat)
    message = f"'head/bias' holds {kind}.*Give another checkpoint\\."
    with pytest.raises(ValueError, match=f"{message} Or.*=\\['head/bias'\\]"):
      testing.read(path, testing.shapes())
    with pytest.raises(ValueError, match=f"{message}$"):
      testing.read(path, testing.shapes(), advice="not by dont_load")
  kept = testing.read(path, testing.shapes(), dont_load=["head/.*"])
  assert isinstance(kept["head"]["bias"], jax.ShapeDtypeStruct)


def test_a_norm_that_counts_its_steps(tmp_path):
  model = vit.Model(3, variant="mu/4", norm="prepbn")
  shapes = jax.eval_shape(model.init, jax.random.key(0), np.zeros((1, 8, 8, 3)))
  name = "batch_stats/Transformer/encoderblock_0/LayerNorm_0/step"
  flat = files.flatten(shapes)
  assert flat[name].dtype == np.int32
  arrays = {k: np.ones(x.shape, x.dtype) for k, x in flat.items()}
  path = testing.write(tmp_path, arrays)
  got = files.flatten(load.load_variables(path, shapes))
  assert (got[name].dtype, got[name]) == (np.int32, 1)


def _corners(rows, cols):
  """Returns (1, rows * cols, 16): from 0 to 1 down, and across."""
  table = np.zeros((rows, cols, 16), np.float32)
  table[..., 0] = np.linspace(0, 1, rows)[:, None]
  table[..., 1] = np.linspace(0, 1, cols)
  return table.reshape(1, rows * cols, 16)


@pytest.mark.parametrize("stem", ["hmlp", "vit_c", "conv"])
def test_positions_of_oblong_images_with_convolutions(tmp_path, stem):
  """64 positions are no square where the images say 4 x 16."""
  size, kw = {"depth": 0, "width": 16, "num_heads": 2}, {"stem": stem}
  more = {"stem_kw": {"num_layers": 2}} if stem == "conv" else {}
  model = vit.Model(3, **size, **kw, **(more or {"patch_size": (4, 4)}))
  of = lambda image: jax.eval_shape(model.init, jax.random.key(0), image)
  here = files.flatten(of(np.zeros((1, 16, 64, 3))))
  arrays = {k: np.zeros(x.shape, x.dtype) for k, x in here.items()}
  arrays["pos_embedding"] = _corners(4, 16)
  path, variables = tmp_path / "params.safetensors", files.unflatten(arrays)
  path = testing.save(path, model, **variables, pp="resize((16, 64))")
  kw = {"options": vit.options(model), "image_size": (32, 32)}
  got = load.load_variables(path, of(np.zeros((1, 32, 32, 3))), **kw)
  table = got["params"]["pos_embedding"]
  np.testing.assert_allclose(table, _corners(8, 8), atol=1e-6)


@pytest.mark.parametrize(
  ("old", "pp", "new", "kw"),
  [
    ((6, 6), None, (4, 9), {"image_size": (16, 36)}),  # as many patches
    ((6, 6), None, (4, 9), {"posemb_grid": (4, 9)}),
    ((8, 8), None, (4, 9), {"image_size": (16, 36)}),
    ((4, 9), "resize((16, 36))", (6, 6), {"image_size": (24, 24)}),
    ((4, 9), "resize((16, 36))", (8, 8), {}),
    ((5, 10), "resize((20, 40))", (10, 20), {"image_size": (40, 80)}),  # 7² + 1
    ((4, 9), "resize((16, 36))", (4, 9), {}),  # a run's file, for its model
    ((4, 9), "resize((16, 36))", (4, 9), {"image_size": (16, 36)}),
  ],
)
def test_positions_of_oblong_images(tmp_path, old, pp, new, kw):
  """With corners on corners, a table linear in rows and columns stays one."""
  model = testing.make("map")
  flat = {**testing.golden("map"), "pos_embedding": _corners(*old)}
  if pp:
    path, params = tmp_path / "params.safetensors", trees.unflatten(flat)
    path = testing.save(path, model, params, pp=pp)
  else:
    path = testing.write(tmp_path, flat)
  shapes = testing.shapes(*(4 * n for n in new), kind="map")
  got = testing.read(path, shapes, options=vit.options(model), **kw)
  np.testing.assert_allclose(got["pos_embedding"], _corners(*new), atol=1e-6)
