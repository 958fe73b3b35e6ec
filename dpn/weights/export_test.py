"""Models that other libraries can, or cannot, express."""

import contextlib
import json
import types

import jax
import numpy as np
import pytest
import safetensors.numpy

from dpn import trees
from dpn.models import vit
from dpn.scripts import convert
from dpn.weights import conftest as testing
from dpn.weights import export, fold

HEADS = {"num_heads": 2}


def test_fixed_positions_are_written_out(tmp_path):
  path, _ = testing.write_ours(
    tmp_path, stem_ln="none", posemb="sincos2d", pool_type="gap"
  )
  target = tmp_path / "x.safetensors"
  with pytest.raises(ValueError, match="add --resolution"):
    convert.convert(path, str(target), "timm")
  convert.convert(path, str(target), "timm", resolution=9)
  table = safetensors.numpy.load_file(target)["pos_embed"]
  # The last patch is in column 2, row 2, at frequencies 1 and 1e-4.
  angles = [2, 2e-4]
  want = [f(a) for f in (np.sin, np.cos) for a in angles] * 2
  np.testing.assert_allclose(table[0, 8], want, atol=1e-6)


@pytest.mark.parametrize(
  "options",
  [
    {
      "stem": "conv",
      "stem_kw": {"kernel_size": 3, "num_layers": 2},
      "patch_size": (16, 16),
      "pool_type": "seq",
    },
    {"posemb": "rpe", "posemb_join": "lape", "pool_type": "tok"},
    {"final_norm": False, "pool_type": "gap"},
  ],
)
def test_our_other_models_are_kept(tmp_path, options):
  path, params = testing.write_ours(tmp_path, **{"stem_ln": "none", **options})
  target = str(tmp_path / "x.npz")
  convert.convert(path, target, "big_vision")
  got, want = np.load(target), trees.flatten(params)
  assert set(got) == {"metadata", *(f"params/{name}" for name in want)}
  with pytest.raises(ValueError, match="no such Vision Transformer"):
    convert.convert(path, str(tmp_path / "x"), "timm")


def test_gray_images(tmp_path):
  flat = testing.golden("timm_tok")
  flat["patch_embed.proj.weight"] = flat["patch_embed.proj.weight"][:, :1]
  path = testing.write_torch(tmp_path, "timm_tok", flat)
  for to, place in (("timm", "pretrained_cfg"), ("hf", None)):
    convert.convert(path, str(tmp_path / to), to, options=HEADS)
    config = json.loads((tmp_path / to / "config.json").read_text())
    if place:
      assert config["model_args"]["in_chans"] == 1
      assert config[place]["input_size"] == [1, 9, 9]
      assert config[place]["mean"] == [0.5]
    else:
      assert config["num_channels"] == 1


def test_mlp_ratio_is_rounded_down_by_timm(tmp_path):
  path, _ = testing.write_ours(tmp_path, stem_ln="none", width=44, mlp_dim=120)
  convert.convert(path, str(tmp_path / "timm"), "timm")
  config = json.loads((tmp_path / "timm" / "config.json").read_text())
  assert int(44 * config["model_args"]["mlp_ratio"]) == 120


def twice(x):
  return contextlib.nullcontext() if isinstance(x, bool) else 2 * x


@pytest.mark.parametrize(
  ("options", "message"),
  [
    ({"norm": "rmsnorm"}, r"norm='rmsnorm' \(only layernorm\)"),
    ({"stem_ln": "rmsnorm"}, r"stem_ln='rmsnorm' \(only none\)"),
    ({"pool_type": "gap"}, r"pool_type='gap' \(only tok\)"),
    ({"posemb_join": "lape"}, r"posemb_join='lape' \(only add\)"),
    ({"weight_norm": f"{__name__}:twice"}, r"weight_norm=.*twice' \(only none"),
    ({"gelu": f"{__name__}:twice"}, r"gelu=.*twice' \(only exact, quick, tanh"),
  ],
)
def test_what_transformers_cannot_express(tmp_path, options, message):
  path, _ = testing.write_ours(tmp_path, **options)
  told = {k: v for k, v in options.items() if k == "norm"}
  with pytest.raises(ValueError, match=message):
    convert.convert(path, str(tmp_path / "x"), "hf", options=told)
  target = str(tmp_path / "x.npz")
  notes = convert.convert(path, target, "big_vision", options=told)
  if "pool_type" not in options:
    assert "big_vision's own ViT does not have" in "\n".join(notes)


PLAIN, POOLED = {"stem_ln": "none"}, {"pool_norm": True, "final_norm": False}
RMSNORM = {
  **{"norm": "rmsnorm", "stem_ln": "post_rmsnorm", "mlp": "swiglu"},
  **{"stem_eps": 1e-5, "norm_kw": {"eps": 1e-5}},
}
NO_TANH = r"rep_size=True \(only False\).*--to ours.*thing\.$"


@pytest.mark.parametrize(
  ("to", "options", "message"),
  [
    *((to, {**PLAIN, "rep_size": True}, NO_TANH) for to in ("timm", "hf")),
    *(
      (to, {"stem_ln": stem_ln}, "stem_ln=.*--extra_modules is for")
      for to, stem_ln in (("timm", "dpn"), ("timm", "pre"), ("hf", "post"))
    ),
    ("timm", {**POOLED, **RMSNORM}, "pool_norm=True"),
    ("timm", {**RMSNORM, "pool_type": "map"}, "pool_type='map'"),
    (
      "timm",
      {**POOLED, **PLAIN, "pool_type": "map", "norm_kw": {"eps": 1e-3}},
      r"0\.001 cannot become 1e-06",
    ),
    ("naflex_vit", {}, "NaFlexViT has no such.*pool_type='to"),
  ],
)
def test_what_libraries_cannot_express(tmp_path, to, options, message):
  path, _ = testing.write_ours(tmp_path, **options)
  target = tmp_path / f"x{export.SUFFIXES[to][0]}"
  with pytest.raises(ValueError, match=message):
    convert.convert(path, str(target), to)


def test_epsilon_of_queries_is_that_of_timm_s_norms(tmp_path):
  """1e-6; but in CLIP's models, whose norms have 1e-5."""
  eps = {"norm_kw": {"eps": 1e-5}, "stem_eps": 1e-5}
  clip = {"stem_ln": "post_posemb", "posemb_join_kw": {"cls": True}, **eps}
  plain = {"stem_ln": "none"}
  for model, right, wrong in ((clip, 1e-5, 1e-6), (plain, 1e-6, 1e-5)):
    model = model | {"qk_norm": "layernorm", "qk_norm_kw": {"eps": right}}
    path, _ = testing.write_ours(tmp_path, **model)
    convert.convert(path, str(tmp_path / f"{right}.safetensors"), "timm")
    model["qk_norm_kw"] = {"eps": wrong}
    path, _ = testing.write_ours(tmp_path, **model)
    with pytest.raises(ValueError, match=r"qk_norm_kw=\{'eps'"):
      convert.convert(path, str(tmp_path / "y.safetensors"), "timm")


def test_a_stem_of_convolutions_is_not_folded():
  options = {"stem": "hmlp", "stem_ln": "only_learnable"}
  model = types.SimpleNamespace(options=options, arrays={})
  assert fold.without_linear_stem(model) is model


@pytest.mark.parametrize("kind", ["timm_tok", "timm_no_embed_class"])
@pytest.mark.parametrize("fc_norm", [True, False])
def test_an_average_beside_a_class_token(tmp_path, kind, fc_norm):
  """Timm's is that of the patches, with the norm behind it or before."""
  flat = testing.golden(kind)
  path = testing.write_torch(tmp_path, kind, flat)
  model, variables, _ = vit.from_pretrained(path, **HEADS)
  _, out = model.apply(variables, testing.IMAGE)
  tokens = np.float64(out["encoder"]["pre_ln"])[:, 1:]
  scale, bias = flat["norm.weight"], flat["norm.bias"]
  std = lambda x: np.sqrt(x.var(-1, keepdims=True) + 1e-6)
  norm = lambda x: (x - x.mean(-1, keepdims=True)) / std(x) * scale + bias
  want = norm(tokens.mean(1)) if fc_norm else norm(tokens).mean(1)
  want = want @ flat["head.weight"].T + flat["head.bias"]
  if fc_norm:
    for x in ("weight", "bias"):
      flat[f"fc_norm.{x}"] = flat.pop(f"norm.{x}")
    testing.write_torch(tmp_path, kind, flat)
  else:
    (tmp_path / "config.json").write_text('{"global_pool": "avg"}')
  again = str(tmp_path / "again.safetensors")
  convert.convert(path, again, "timm", options=HEADS)
  args = json.loads(testing.metadata(again)["timm"])
  assert (args["class_token"], args["reg_tokens"]) == (False, 1)
  assert (args["global_pool"], args["fc_norm"]) == ("avg", fc_norm)
  for source, options in ((path, HEADS), (again, {})):
    model, variables, _ = vit.from_pretrained(source, **options)
    logits, _ = model.apply(variables, testing.IMAGE)
    np.testing.assert_allclose(logits, want, rtol=1e-4, atol=1e-5)
  # As the start of training, too.
  params = testing.load_into(model, path)
  np.testing.assert_allclose(
    *(x["registers"] for x in (params, variables["params"])), rtol=1e-6
  )


def test_what_had_to_be_assumed(tmp_path):
  path = testing.write_torch(tmp_path, "timm_tok")
  target = str(tmp_path / "x.npz")
  notes = convert.convert(path, target, "big_vision", options=HEADS)
  [note] = [note for note in notes if note.startswith("Assumed")]
  assert note == (
    "Assumed: gelu='exact', norm_kw={'eps': 1e-06}, block_ln_kw={'sa': 'pre', "
    "'mlp': 'pre', 'post': 'branch'}, rope='none', pool_type='tok' (state it "
    "with --set gelu=… --set norm_kw=… --set block_ln_kw=… --set rope=… --set "
    "pool_type=… or, all of it, --arch NAME)."
  )


def test_whitening_is_in_the_embedding_elsewhere(tmp_path):
  model = testing.make("timm_tok", stem_ln="whiten")
  variables = testing.draw(
    dict(jax.eval_shape(model.init, jax.random.key(0), testing.IMAGE))
  )
  path = testing.save(tmp_path / "a.safetensors", model, **variables)
  target = str(tmp_path / "b.safetensors")
  convert.convert(path, target, "timm")
  want = model.apply(variables, testing.IMAGE)[0]
  got = testing.logits(testing.make("timm_tok"), target)
  np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
  "options",
  [
    {"stem_ln": "none", "norm_kw": {"eps": 1e-3}, "pool_type": "tok"},
    {"stem_ln": "post", "norm_kw": {"eps": 1e-3}, "pool_type": "gap"},
    {"stem_ln": "none", "norm_kw": {"eps": 1e-9}, "pool_type": "map"},
    {
      **{"stem_ln": "none", "norm_kw": {"eps": 1e-3}},
      **{"posemb": "sincos2d", "pool_type": "gap"},
    },
    {"stem_ln": "only_learnable"},
  ],
)
def test_what_is_rewritten_for_timm_computes_the_same(tmp_path, options):
  path, params = testing.write_ours(tmp_path, **options)
  target = str(tmp_path / "x.safetensors")
  convert.convert(path, target, "timm", resolution=9)
  said = json.loads(testing.metadata(target)["model"]) | {"posemb": "learn"}
  assert said["norm_kw"] == {"eps": 1e-6}
  assert said["stem_ln"] in ("none", "post")
  model = vit.Model(5, **{**testing.TORCH, "pool_type": "tok", **options})
  want = model.apply({"params": params}, testing.IMAGE)[0]
  got = testing.logits(vit.Model(**said), target)
  np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
