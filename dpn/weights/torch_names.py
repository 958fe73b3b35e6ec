"""Vision Transformers under the names of timm and of Hugging Face.

Both store PyTorch's arrays: a Linear's weight is our kernel transposed, with
all heads on one axis; a convolution's is (width, channels, rows, cols).
docs/checkpoints.md has the names side by side.
"""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

Flat = dict[str, Any]

_BLOCK = "Transformer/encoderblock_{i}/"
_ATTENTION = _BLOCK + "MultiHeadDotProductAttention_0/"
_MAP_ATTENTION = "MAPHead_0/MultiHeadDotProductAttention_0/"


@dataclasses.dataclass(frozen=True)
class ParamNames:
  """How a library names the parts of a Vision Transformer.

  Attributes:
    title: of the library.
    sign: a name that every model of the library has and no other.
    modules: our module → theirs; {i} is the number of a block.
    arrays: our array → theirs, for arrays outside of modules.
    fused: their module → the modules that it is the concatenation of.
    renamed: (pattern, replacement) for other names of the same things.
    scales: their factors per channel → the module whose result they multiply.
    homeless: our modules that the library's own model has no place for.
  """

  title: str
  sign: str
  modules: Mapping[str, str]
  arrays: Mapping[str, str]
  fused: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
  renamed: tuple[tuple[str, str], ...] = ()
  scales: Mapping[str, str] = dataclasses.field(default_factory=dict)
  homeless: tuple[str, ...] = ()


TIMM = ParamNames(
  title="timm",
  sign="patch_embed.proj.weight",
  modules={
    "embedding": "patch_embed.proj",
    "stem/ln0": "patch_embed.ln0",
    "stem/ln1": "patch_embed.norm",
    _BLOCK + "LayerNorm_0": "blocks.{i}.norm1",
    _ATTENTION + "query": "blocks.{i}.attn.q",
    _ATTENTION + "key": "blocks.{i}.attn.k",
    _ATTENTION + "value": "blocks.{i}.attn.v",
    _ATTENTION + "out": "blocks.{i}.attn.proj",
    _BLOCK + "LayerNorm_1": "blocks.{i}.norm2",
    _BLOCK + "MlpBlock_0/Dense_0": "blocks.{i}.mlp.fc1",
    _BLOCK + "MlpBlock_0/Dense_1": "blocks.{i}.mlp.fc2",
    "Transformer/encoder_norm": "norm",
    _MAP_ATTENTION + "query": "attn_pool.q",
    _MAP_ATTENTION + "key": "attn_pool.k",
    _MAP_ATTENTION + "value": "attn_pool.v",
    _MAP_ATTENTION + "out": "attn_pool.proj",
    "MAPHead_0/LayerNorm_0": "attn_pool.norm",
    "MAPHead_0/MlpBlock_0/Dense_0": "attn_pool.mlp.fc1",
    "MAPHead_0/MlpBlock_0/Dense_1": "attn_pool.mlp.fc2",
    "pre_logits": "pre_logits.fc",
    "head": "head",
  },
  arrays={
    "cls": "cls_token",
    "pos_embedding": "pos_embed",
    "MAPHead_0/probe": "attn_pool.latent",
  },
  fused={
    "blocks.{i}.attn.qkv": (
      "blocks.{i}.attn.q",
      "blocks.{i}.attn.k",
      "blocks.{i}.attn.v",
    ),
    "attn_pool.kv": ("attn_pool.k", "attn_pool.v"),
  },
  scales={
    "blocks.{i}.ls1.gamma": "blocks.{i}.attn.proj",
    "blocks.{i}.ls2.gamma": "blocks.{i}.mlp.fc2",
  },
  homeless=("stem/ln0",),
)
_HF_BLOCK = "encoder.layer.{i}."
HF = ParamNames(
  title="Hugging Face transformers",
  sign="embeddings.patch_embeddings.projection.weight",
  modules={
    "embedding": "embeddings.patch_embeddings.projection",
    "stem/ln0": "embeddings.patch_embeddings.ln0",
    "stem/ln1": "embeddings.patch_embeddings.ln1",
    _BLOCK + "LayerNorm_0": _HF_BLOCK + "layernorm_before",
    _ATTENTION + "query": _HF_BLOCK + "attention.attention.query",
    _ATTENTION + "key": _HF_BLOCK + "attention.attention.key",
    _ATTENTION + "value": _HF_BLOCK + "attention.attention.value",
    _ATTENTION + "out": _HF_BLOCK + "attention.output.dense",
    _BLOCK + "LayerNorm_1": _HF_BLOCK + "layernorm_after",
    _BLOCK + "MlpBlock_0/Dense_0": _HF_BLOCK + "intermediate.dense",
    _BLOCK + "MlpBlock_0/Dense_1": _HF_BLOCK + "output.dense",
    "Transformer/encoder_norm": "layernorm",
    "pre_logits": "pooler.dense",
    "head": "classifier",
  },
  arrays={
    "cls": "embeddings.cls_token",
    "pos_embedding": "embeddings.position_embeddings",
  },
  renamed=(
    (r"vit\.(.*)", r"\1"),
    # transformers 5 uses other names in memory than in files.
    *(
      (rf"layers\.(\d+)\.{new}\.(.*)", rf"encoder.layer.\1.{old}.\2")
      for new, old in (
        ("attention.q_proj", "attention.attention.query"),
        ("attention.k_proj", "attention.attention.key"),
        ("attention.v_proj", "attention.attention.value"),
        ("attention.o_proj", "attention.output.dense"),
        ("mlp.fc1", "intermediate.dense"),
        ("mlp.fc2", "output.dense"),
        ("layernorm_before", "layernorm_before"),
        ("layernorm_after", "layernorm_after"),
      )
    ),
  ),
  homeless=("stem/ln0", "stem/ln1"),
)
LIBRARIES = {"timm": TIMM, "hf": HF}


def layout_of(path: str, flat: Flat) -> str:
  """Returns `ours`, which is big_vision's too, or a key of `LIBRARIES`.

  Args:
    path: for the message.
    flat: arrays by name.

  Raises:
    ValueError: the names are PyTorch's, but of no known library.
  """
  for key, library in LIBRARIES.items():
    if any(_renamed(library, name) == library.sign for name in flat):
      return key
  if all("/" not in name and "." in name for name in flat):
    signs = [f"{names.title} ({names.sign})" for names in LIBRARIES.values()]
    raise ValueError(
      f"{path!r} has an unknown layout: {', '.join(sorted(flat)[:4])}, … "
      "Expected a Vision Transformer of this code base, of big_vision, of "
      f"{' or of '.join(signs)}."
    )
  return "ours"


def to_ours(flat: Flat, key: str, num_heads: int) -> Flat:
  """Returns the arrays of another library under our names, in our shapes.

  Names that the layout does not know stay as they are.

  Args:
    flat: arrays by name.
    key: in `LIBRARIES`.
    num_heads: of the attention; the arrays do not tell.

  Raises:
    ValueError: an array has a shape that its name does not allow.
  """
  library = LIBRARIES[key]
  flat = {_renamed(library, name): x for name, x in flat.items()}
  flat = _split(_fold_layer_scale(flat, library), library)
  kernel = flat[library.sign].shape  # (width, channels, rows, cols)
  patch = (*kernel[2:], *kernel[1:2])
  modules = {theirs: ours for ours, theirs in library.modules.items()}
  arrays = {theirs: ours for ours, theirs in library.arrays.items()}
  result = {}
  for name, x in flat.items():
    template, i = _template(name)
    module, _, leaf = template.rpartition(".")
    if module not in modules or leaf not in ("weight", "bias"):
      result[arrays.get(name, name)] = x
      continue
    module = modules[module]
    if leaf == "weight":
      leaf = "scale" if re.search(_NORMS, module) else "kernel"
    ours = f"{module}/{leaf}".replace("{i}", i)
    convert, _ = _conversions(ours)
    try:
      result[ours] = convert(x, num_heads, patch)
    except (ValueError, IndexError, TypeError) as error:
      raise ValueError(
        f"{name} has shape {tuple(x.shape)}, from which our array cannot be "
        f"made with num_heads={num_heads} ({error}). The file is of another "
        "architecture, or num_heads is wrong."
      ) from error
  return result


def from_ours(flat: Flat, key: str) -> Flat:
  """Returns our arrays under the names and in the shapes of another library.

  Position embeddings go as they are, with or without the class token's row.

  Args:
    flat: of a model with looped blocks.
    key: in `LIBRARIES`.

  Raises:
    ValueError: listing the parameters that the layout has no names for.
  """
  library = LIBRARIES[key]
  patch = flat["embedding/kernel"].shape[:3]
  result, left = {}, []
  for name, x in flat.items():
    template, i = _template(name)
    module, _, leaf = template.rpartition("/")
    if name in library.arrays:
      result[library.arrays[name]] = x
    elif module in library.modules:
      leaf = "bias" if leaf == "bias" else "weight"
      theirs = f"{library.modules[module]}.{leaf}".replace("{i}", i)
      _, convert = _conversions(name)
      result[theirs] = convert(x, patch)
    else:
      left.append(f"  {name}  {tuple(x.shape)}")
  if left:
    raise ValueError(
      f"{library.title} has no place for these parameters of the model, see "
      "docs/checkpoints.md:\n" + "\n".join(left)
    )
  return _fuse(result, library)


def _template(name):
  """Returns the name with {i} for the number of its block, and the number."""
  pattern = r"((?:.*/)?encoderblock_|blocks\.|encoder\.layer\.)(\d+)([./].*)"
  if match := re.fullmatch(pattern, name):
    return f"{match[1]}{{i}}{match[3]}", match[2]
  return name, ""


def _renamed(library, name):
  for pattern, replacement in library.renamed:
    if match := re.fullmatch(pattern, name):
      name = match.expand(replacement)
  return name


def _fold_layer_scale(flat, library):
  """Returns `flat` with factors on a layer's result within its parameters."""
  result = dict(flat)
  for name, gamma in flat.items():
    template, i = _template(name)
    if template in library.scales:
      module = library.scales[template].replace("{i}", i)
      gamma = result.pop(name).astype(np.float32)
      for leaf in {f"{module}.weight", f"{module}.bias"} & flat.keys():
        x = flat[leaf]
        result[leaf] = x * gamma.reshape(-1, *[1] * (x.ndim - 1))
  return result


def _split(flat, library):
  """Returns `flat` with fused modules taken apart."""
  result = {}
  for name, x in flat.items():
    template, i = _template(name)
    module, _, leaf = template.rpartition(".")
    parts = library.fused.get(module)
    if parts is None:
      result[name] = x
      continue
    if x.ndim == 0 or x.shape[0] % len(parts):
      raise ValueError(
        f"{name} has shape {tuple(x.shape)}; expected {len(parts)} equal parts "
        "along its first axis, one above the other."
      )
    for part, piece in zip(parts, np.split(x, len(parts)), strict=True):
      result[f"{part}.{leaf}".replace("{i}", i)] = piece
  return result


def _fuse(flat, library):
  """The inverse of `_split`."""
  flat = dict(flat)
  for fused, parts in library.fused.items():
    for name in list(flat):
      template, i = _template(name)
      module, _, leaf = template.rpartition(".")
      if module == parts[0]:
        names = [f"{part}.{leaf}".replace("{i}", i) for part in parts]
        pieces = [flat.pop(n) for n in names]
        flat[f"{fused}.{leaf}".replace("{i}", i)] = np.concatenate(pieces)
  return flat


_NORMS = r"(LayerNorm_\d|encoder_norm|stem/ln\d)$"
# By our names, the first that matches: from PyTorch's array x to ours, and from
# ours to PyTorch's. n is the number of heads, pqc the (rows, cols, channels) of
# a patch.
_CONVERSIONS = (
  (  # theirs is in the order of a flattened convolution
    r"stem/ln0/.*",
    lambda x, n, pqc: x.reshape(pqc[2], *pqc[:2]).transpose(1, 2, 0).ravel(),
    lambda x, pqc: x.reshape(pqc).transpose(2, 0, 1).ravel(),
  ),
  (  # a convolution: (width, channels, rows, cols)
    r"embedding/kernel",
    lambda x, n, pqc: x.transpose(2, 3, 1, 0),
    lambda x, pqc: x.transpose(3, 2, 0, 1),
  ),
  (  # (heads * d, width)
    r".*/(query|key|value)/kernel",
    lambda x, n, pqc: x.T.reshape(x.shape[1], n, -1),
    lambda x, pqc: x.reshape(x.shape[0], -1).T,
  ),
  (  # (heads * d,)
    r".*/(query|key|value)/bias",
    lambda x, n, pqc: x.reshape(n, -1),
    lambda x, pqc: x.reshape(-1),
  ),
  (  # (width, heads * d)
    r".*/out/kernel",
    lambda x, n, pqc: x.T.reshape(n, -1, x.shape[0]),
    lambda x, pqc: x.reshape(-1, x.shape[-1]).T,
  ),
  (r".*/kernel", lambda x, n, pqc: x.transpose(1, 0), lambda x, pqc: x.T),
  (r".*", lambda x, n, pqc: x, lambda x, pqc: x),
)


def _conversions(name):
  """Returns the functions from PyTorch's array to ours, and back."""
  return next(both for p, *both in _CONVERSIONS if re.fullmatch(p, name))
