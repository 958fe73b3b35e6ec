"""Vision Transformers of Hugging Face transformers: names and JSON files."""

from typing import TypedDict

from dpn.weights import metadata, preprocessing
from dpn.weights.names import ATTENTION, BLOCK, BLOCKS, PLAIN, Names

_BLOCK = "encoder.layer.{i}."
NAMES = Names(
  title="Hugging Face transformers",
  sign="embeddings.patch_embeddings.projection.weight",
  modules={
    "embeddings.patch_embeddings.projection": "embedding",
    "embeddings.patch_embeddings.ln0": "stem/ln0",
    "embeddings.patch_embeddings.ln1": "stem/ln1",
    _BLOCK + "layernorm_before": BLOCK + "LayerNorm_0",
    _BLOCK + "attention.attention.query": ATTENTION + "query",
    _BLOCK + "attention.attention.key": ATTENTION + "key",
    _BLOCK + "attention.attention.value": ATTENTION + "value",
    _BLOCK + "attention.output.dense": ATTENTION + "out",
    _BLOCK + "layernorm_after": BLOCK + "LayerNorm_1",
    _BLOCK + "intermediate.dense": BLOCK + "MlpBlock_0/Dense_0",
    _BLOCK + "output.dense": BLOCK + "MlpBlock_0/Dense_1",
    "layernorm": "Transformer/encoder_norm",
    "pooler.dense": "pre_logits",
    "classifier": "head",
  },
  arrays={
    "embeddings.cls_token": "cls",
    "embeddings.register_tokens": "registers",
    "embeddings.position_embeddings": "pos_embedding",
  },
  renamed=(
    (r"(?:vit|ijepa|dinov2\w*)\.(.*)", r"\1"),
    # transformers 5 uses other names in memory than in files.
    (r"layers\.(\d+\..*)", r"encoder.layer.\1"),
    *(
      (rf"(encoder\.layer\.\d+\.){other}(\..*)", rf"\1{name}\2")
      for other, name in (
        (r"attention\.q_proj", "attention.attention.query"),
        (r"attention\.k_proj", "attention.attention.key"),
        (r"attention\.v_proj", "attention.attention.value"),
        (r"attention\.o_proj", "attention.output.dense"),
        (r"mlp\.fc1", "intermediate.dense"),  # in DINOv2's files, too
        (r"mlp\.fc2", "output.dense"),
        (r"norm1", "layernorm_before"),
        (r"norm2", "layernorm_after"),
      )
    ),
  ),
  scales={
    _BLOCK + "layer_scale1.lambda1": _BLOCK + "attention.output.dense",
    _BLOCK + "layer_scale2.lambda1": _BLOCK + "output.dense",
  },
  extra=("stem/ln0", "stem/ln1"),
)
# Their models that ours can be, by model_type; I-JEPA's has no class token.
_TYPES = ["vit", "vit_mae", "vit_msn", "dpt", "flava_image_model", "ijepa"]
_TYPES += ["dinov2", "dinov2_with_registers"]
# Of names for the same function, exports write the first.
GELUS = {
  **dict.fromkeys(("gelu", "gelu_python"), "exact"),
  **dict.fromkeys(
    ("gelu_pytorch_tanh", "gelu_new", "gelu_fast", "gelu_accurate"), "tanh"
  ),
  "quick_gelu": "quick",
}
# Options of its own models. A classifier applies no tanh layer.
SUPPORTED = {
  **{**PLAIN, "pool_type": ["tok"], "stem_ln": ["none"]},
  "gelu": sorted({*GELUS.values()}),
}


class Config(TypedDict, total=False):
  """config.json."""

  hidden_act: str
  image_size: int | list[int] | None
  layer_norm_eps: float
  model_type: str
  num_attention_heads: int
  num_channels: int
  pooler_act: str


class ImageConfig(TypedDict, total=False):
  """preprocessor_config.json."""

  crop_size: dict | list[int] | int | None
  do_center_crop: bool | None
  do_normalize: bool | None
  do_resize: bool | None
  do_rescale: bool | None
  rescale_factor: float
  image_mean: list[float] | float | None
  image_std: list[float] | float | None
  resample: int | None
  size: dict | list[int] | int | None


def describe(config: Config, image: ImageConfig) -> metadata.ModelMetadata:
  """Returns what is known about a model from its files; missing ones are {}.

  Raises:
    ValueError: our model cannot express it.
  """
  kind = config.get("model_type", "vit")
  metadata.translate("type", kind, dict.fromkeys(_TYPES, kind))
  pooler_act = config.get("pooler_act", "tanh")
  metadata.translate("pooler's activation", pooler_act, {"tanh": "tanh"})
  act = config.get("hidden_act", "gelu")
  eps = 1e-6 if kind.startswith(("dinov2", "vit_msn")) else 1e-12
  options = {
    "gelu": metadata.translate("activation", act, GELUS),
    "norm": "layernorm",
    "norm_kw": {"eps": config.get("layer_norm_eps", eps)},
    "posemb_join": "add",
    **BLOCKS,
  }
  if heads := config.get("num_attention_heads"):
    options["num_heads"] = heads
  options["pool_type"] = "gap" if kind == "ijepa" else "tok"
  mean, std = image.get("image_mean"), image.get("image_std")
  if image.get("do_normalize") is False:
    mean, std = [0.0], [1.0]
  # Both are for levels 0 to 255 times a factor, ours for levels 0 to 1.
  factor = image.get("rescale_factor", 1 / 255)
  white = 255 * (factor if image.get("do_rescale", True) else 1)
  pixels = metadata.pixels_of(mean, std, white)
  return metadata.ModelMetadata(
    "hf",
    options,
    pixels,
    preprocessing.of_hugging_face(image, pixels, config.get("num_channels", 3))
    if image
    else None,
    cls_row=True,
    image_size=preprocessing.size_of(config.get("image_size")),
    source="its config.json" if config else "the defaults of transformers",
    guessed=() if config else ("gelu", "norm_kw", "rep_size"),
  )
