"""Vision Transformers of lucidrains/vit-pytorch, which all have Dual PatchNorm.

They are `vit.ViT` and `simple_vit.SimpleViT` of vit-pytorch 1.26. A state dict
does not tell the patches' shape, the number of heads, or which of the library's
many classes it is from: `describe` lists what is assumed.
"""

from typing import Any

from dpn.weights import metadata
from dpn.weights.files import Flat
from dpn.weights.names import ATTENTION, BLOCK, BLOCKS, PLAIN, QKV, Names

_LAYER = "transformer.layers.{i}."
_MODULES: dict[str, str | tuple[str, ...]] = {
  "to_patch_embedding.1": "stem/ln0",
  "to_patch_embedding.2": "embedding",
  "to_patch_embedding.3": "stem/ln1",
  _LAYER + "0.norm": BLOCK + "LayerNorm_0",
  _LAYER + "0.to_qkv": QKV,
  _LAYER + "1.net.0": BLOCK + "LayerNorm_1",
  _LAYER + "1.net.1": BLOCK + "MlpBlock_0/Dense_0",
  "transformer.norm": "Transformer/encoder_norm",
}
_DENSE_1 = BLOCK + "MlpBlock_0/Dense_1"
VIT = Names(
  title="vit-pytorch's ViT",
  sign="transformer.layers.0.1.net.4.weight",
  embedding="to_patch_embedding.2.weight",
  modules={
    **_MODULES,
    _LAYER + "0.to_out.0": ATTENTION + "out",
    _LAYER + "1.net.4": _DENSE_1,
    "mlp_head": "head",
  },
  arrays={"cls_token": "cls", "pos_embedding": "pos_embedding"},
  # One head that is as wide as the tokens is not projected.
  implied={
    ATTENTION + f"out/{leaf}": lambda heads, d, width: (heads, d) == (1, width)
    for leaf in ("kernel", "bias")
  },
)
SIMPLE = Names(
  title="vit-pytorch's SimpleViT",
  sign="transformer.layers.0.1.net.3.weight",
  embedding="to_patch_embedding.2.weight",
  modules={
    **_MODULES,
    _LAYER + "0.to_out": ATTENTION + "out",
    _LAYER + "1.net.3": _DENSE_1,
    "linear_head": "head",
  },
  arrays={},
  implied={ATTENTION + "out/bias": lambda heads, d, width: True},
)
EPS = 1e-5  # PyTorch's own
DIM_HEAD = 64  # vit-pytorch's default
# Options of its own models. ViT(num_classes=0) does not pool.
_SUPPORTED = {
  **{k: v for k, v in PLAIN.items() if k != "head_dim"},
  "stem_ln": ["dpn"],
  "stem_eps": [EPS],
  "norm_kw": [{"eps": EPS}],
  "gelu": ["exact"],
  "qkv_bias": [False],
  "rep_size": [False],
}
SUPPORTED = {
  "vit_pytorch": {**_SUPPORTED, "pool_type": ["tok", "gap"]},
  "simple_vit": {**_SUPPORTED, "pool_type": ["gap"], "posemb": ["sincos2d"]},
}


def describe(flat: Flat, layout: str) -> metadata.ModelMetadata:
  """Returns what is known about a model from its arrays, by the file's names.

  `layout` is "vit_pytorch" or "simple_vit".
  """
  options: dict[str, Any] = {
    **{"gelu": "exact", "norm": "layernorm", "norm_kw": {"eps": EPS}},
    "stem_eps": EPS,
    "posemb_join": "add",
    **BLOCKS,
  }
  guessed = ["gelu", "norm_kw", "stem_eps", "block_ln_kw", "patch_size"]
  if layout == "simple_vit":
    options |= {"posemb": "sincos2d", "posemb_kw": {}, "pool_type": "gap"}
    guessed.append("posemb")
  else:
    # Until 2025 mean pooling included a class token, of shape (1, 1, width).
    if (token := flat.get("cls_token")) is not None and token.ndim == 2:
      options["pool_type"] = "tok" if token.size else "gap"
    if "transformer.layers.0.0.to_out.0.weight" not in flat:
      options["num_heads"] = 1
  return metadata.ModelMetadata(
    layout,
    options,
    cls_row=layout == "vit_pytorch",
    source="the defaults of vit-pytorch",
    guessed=tuple(guessed),
  )


def heads(channels: int) -> int | None:
  """Returns how many heads of the default size have `channels` in all."""
  return channels // DIM_HEAD if channels % DIM_HEAD == 0 else None
