"""Options that exclude each other are refused with the way out."""

import jax
import jax.numpy as jnp
import pytest

from dpn.models import vit

SMALL = {"width": 16, "depth": 3, "num_heads": 2, "patch_size": (4, 4)}
LATE = {"norm": "dtn", "cls_blocks": 2, "pool_type": "tok"}


@pytest.mark.parametrize(
  ("options", "message"),
  [
    (
      {"stem_ln": "post_posemb", "posemb_join": "lape"},
      "posemb_join='lape' never forms. Use stem_ln='post'",
    ),
    ({"stem_ln": "post_posemb", "posemb": "rpe"}, "posemb='rpe' never forms"),
    ({"stem_ln": "dpn", "stem": "conv"}, "has none. Use stem_ln='post'"),
    (
      {"posemb_join": "lape", "block_ln_kw": {"sa": "post"}},
      "Use sa='pre' or 'pre\\+post' in block_ln_kw",
    ),
    (
      {**LATE, "pool_type": "gap"},
      "needs pool_type='tok'.*got pool_type='gap'",
    ),
    ({**LATE, "depth": 2}, "more blocks than that; got.*depth=2"),
    ({**LATE, "scan": True}, "needs.*scan=False.*scan=True"),
    ({**LATE, "posemb_join": "lape"}, "got.*posemb_join='lape'"),
    ({"posemb_join": "lap"}, "Unknown posemb_join 'lap'. Did you mean 'lape'"),
    ({"posemb": "sincos"}, "Unknown posemb 'sincos'. Did you mean 'sincos"),
    ({"norm": "batchnrom"}, "Did you mean 'batchnorm'"),
    ({"attn_impl": "cudn"}, "Unknown attn_impl 'cudn'. Did you mean 'cudnn'"),
    ({"block_ln": "subln"}, "Did you mean 'sub_ln'"),
    ({"gelu": "exac"}, "Did you mean 'exact'"),
    ({"prefix_norm": "shraed"}, "Did you mean 'shared'"),
    ({"block_ln_kw": {"post": "stream"}}, "post='stream' without a norm after"),
    ({"weight_init": "ctc"}, "Unknown weight_init 'ctc'. Did you mean 'cct'"),
    ({"blok_ln": "sub_ln"}, "Did you mean 'block_ln'"),
    ({"variant": "Tj/16"}, "variant 'Tj'. Did you mean 'Ti'"),
    ({"variant": "B/x"}, "'B/x' must end in the patch size in pixels"),
    ({"widht": 3}, "model option 'widht'. Did you mean 'width'"),
    ({"pool_type": "tokk"}, "pool_type 'tokk'. Did you mean 'tok'"),
    ({"stem_ln": "dpm"}, "stem_ln 'dpm'. Did you mean 'dpn'"),
    ({"stoch_depth": 10.0}, "stoch_depth must be from 0 to below 1, got 10"),
    (
      {
        **{"block_ln": "normformer", "block_ln_kw": {"head_scale": "out"}},
        **{"num_heads": 3, "head_dim": 4},
      },
      "must be a multiple of num_heads=3",
    ),
    ({"dtype_mm": "bf16"}, "dtype_mm 'bf16'. Did you mean 'bfloat16'"),
    (
      {"block_ln": "mix_ln", "posemb_join": "lape", "depth": 8},
      "'mix_ln' does not normalize there",
    ),
    ({"remat_policy": "dots"}, "remat_policy 'dots'.*Known: dots_saveable"),
    ({"posemb_join": "unshared", "posemb": "sincos1d"}, "learns a table"),
    ({"posemb_join": "shared", "posemb": "rpe"}, "use 'add' or 'lape'"),
    (
      {
        **{"posemb_join": "lape", "posemb": "rpe"},
        **{"posemb_join_kw": {"share": True}},
      },
      "leave out posemb_join_kw.share",
    ),
    (
      {"posemb_join": "lape", "posemb_join_kw": {"norm": "scal"}},
      "mean 'scale'",
    ),
    ({"rope": "axial", "num_heads": 8}, "must be a multiple of 4, got 2"),
    ({"rope": "axial", "rope_kw": {"pair": "axes"}}, "Unknown option 'pair'"),
    ({"posemb": "none", "posemb_join": "lape"}, "nothing to normalize"),
    ({"registers": -1}, "registers must be 0 or more"),
    ({"registers_last": True}, "registers_last needs some"),
    ({"registers": 1, "posemb_join": "lape"}, "posemb_join='lape' adds"),
    ({"prefix_norm": "own"}, "there are none. Use pool_type='tok'"),
    (
      {"prefix_norm": "own", "registers": 1, "norm": "batchnorm"},
      "norm='batchnorm' looks at several",
    ),
    (
      {"prefix_norm": "own_final", "registers": 1, "final_norm": False},
      "needs the last norm",
    ),
    ({"norm": "prepbn", "pool_norm": "norm"}, "there is one left"),
    (
      {"final_norm": "derf"},
      "Unknown final_norm 'derf'.* Known: False, True, norm",
    ),
    *(
      (
        {"block_ln": kind, "scan": True, "depth": 8},
        f"'{kind}' has norms in other places.*Set scan=False",
      )
      for kind in ("mix_ln", "keel")
    ),
    *(
      ({"qk_norm": norm}, f"Unknown qk_norm '{norm}'")
      for norm in ("batchnorm", "instancenorm", "dtn")
    ),
    (
      {"qk_norm": "dpn.models.norms.dtn:DTN"},
      "statistics over several tokens",
    ),
    *(
      ({"stem": stem, "patch_size": size}, "multiple of 4 for 'hmlp'")
      for stem, size in (
        ("hmlp", (6, 6)),
        ("vit_c", (12, 12)),
        ("hmlp", (8, 4)),
      )
    ),
    (
      {"weight_init": "whiten", "stem": "hmlp"},
      "weight_init='whiten'.*stem='hmlp' does not have.*tract",
    ),
    (
      {"weight_init": "whiten", "weight_norm": "sigma_reparam"},
      "weight_norm='sigma_reparam' would",
    ),
    ({"num_heads": 3}, r"width=16 must be .* num_heads=3"),
    ({"variant": "cct-7/3"}, "as in 'cct-7/3x1'"),
    ({"variant": "lite7/4"}, "Did you mean 'lite-7'"),
  ],
)
def test_refused(options, message):
  with pytest.raises(ValueError, match=message):
    vit.Model(5, **{**SMALL, **options})


@pytest.mark.parametrize(
  ("options", "message"),
  [
    ({"block_ln": "specialized_cls"}, "this block sees none. Use pool_type"),
    (
      {"rope_kw": {"native_side": 4, "coordinates": "centred"}},
      "rope_kw.native_side squeezes",
    ),
    ({"block_ln": "dpn.models.ngpt:Block", "mlp": "geglu"}, "its own mlp and"),
  ],
)
def test_refused_when_it_is_traced(options, message):
  options = {**SMALL, "rope": "axial", **options}
  model = vit.Model(5, **options)
  with pytest.raises(ValueError, match=message):
    jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, 8, 8, 3)))


def test_an_encoder_without_blocks_or_norm():
  options = {**SMALL, "depth": 0, "scan": True, "dtype_mm": "bfloat16"}
  model = vit.Model(5, **options, norm="none", final_norm="norm")
  run = lambda image: model.init_with_output(jax.random.key(0), image)[0][1]
  out = jax.eval_shape(run, jnp.zeros((1, 8, 8, 3)))
  assert (out["stem"].dtype, out["encoded"].dtype) == ("bfloat16", "float32")
