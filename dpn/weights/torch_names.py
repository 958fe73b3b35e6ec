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
    without_place: our modules that the library's own model has no place for.
  """

  title: str
  sign: str
  modules: Mapping[str, str]
  arrays: Mapping[str, str]
  fused: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
  renamed: tuple[tuple[str, str], ...] = ()
  scales: Mapping[str, str] = dataclasses.field(default_factory=dict)
  without_place: tuple[str, ...] = ()


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
  without_place=("stem/ln0",),
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
  without_place=("stem/ln0", "stem/ln1"),
)
LIBRARIES = {"timm": TIMM, "hf": HF}


def recognize(names) -> str | None:
  """Returns the key in `LIBRARIES` of a file with these names, or None."""
  for key, layout in LIBRARIES.items():
    if any(_renamed(layout, name) == layout.sign for name in names):
      return key
  return None


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
  layout = LIBRARIES[key]
  flat = {_renamed(layout, name): x for name, x in flat.items()}
  flat = _split(_fold_layer_scale(flat, layout), layout)
  kernel = flat[layout.sign]
  patch = (*kernel.shape[2:], kernel.shape[1]) if kernel.ndim == 4 else None
  modules = {theirs: ours for ours, theirs in layout.modules.items()}
  arrays = {theirs: ours for ours, theirs in layout.arrays.items()}
  result = {}
  for name, x in flat.items():
    template, i = _template(name)
    module, _, leaf = template.rpartition(".")
    if name in arrays:
      result[arrays[name]] = x
    elif module in modules and leaf in ("weight", "bias"):
      ours = modules[module]
      convert = _CONVERSIONS[_kind(ours, leaf)][0]
      try:
        x = convert(x, num_heads, patch)
      except (ValueError, IndexError, TypeError) as error:
        raise ValueError(
          f"{name} has shape {tuple(x.shape)}, from which our array cannot be "
          f"made with num_heads={num_heads} ({error}). The file is of another "
          "architecture, or num_heads is wrong."
        ) from error
      result[f"{ours}/{_our_leaf(ours, leaf)}".replace("{i}", i)] = x
    else:
      result[name] = x
  return result


def check_parts(flat: Flat, key: str):
  """Raises ValueError saying which parts of a file our model lacks.

  Args:
    flat: as `to_ours` returns it.
    key: in `LIBRARIES`.
  """
  known = LIBRARIES[key].arrays
  left = sorted(n for n in flat if "/" not in n and n not in known)
  if left:
    more = f" and {len(left) - 8} more" if len(left) > 8 else ""
    raise ValueError(
      "it is no model that ours can compute. We have no place for "
      f"{', '.join(left[:8])}{more}: a plain Vision Transformer has no "
      "registers or other tokens, no norms of queries and keys, none behind "
      "the pooling or the positions, and no decoder."
    )
  if "pos_embedding" not in flat:
    raise ValueError(
      f"it has no {known['pos_embedding']!r}: our Vision Transformer always "
      "has positions."
    )


def has_layer_scale(flat: Flat, key: str) -> bool:
  """Returns whether `to_ours` multiplies such factors into other arrays."""
  scales = LIBRARIES[key].scales if key in LIBRARIES else ()
  return any(_template(name)[0] in scales for name in flat)


def from_ours(flat: Flat, key: str) -> Flat:
  """Returns our arrays under the names and in the shapes of another library.

  Position embeddings go as they are: see `with_cls_row`.

  Args:
    flat: of a model with looped blocks.
    key: in `LIBRARIES`.

  Raises:
    ValueError: listing the parameters that the layout has no names for.
  """
  layout = LIBRARIES[key]
  patch = flat["embedding/kernel"].shape[:3]
  result, left = {}, []
  for name, x in flat.items():
    template, i = _template(name)
    module, _, leaf = template.rpartition("/")
    if name in layout.arrays:
      result[layout.arrays[name]] = x
    elif module in layout.modules and leaf in ("kernel", "scale", "bias"):
      theirs = (
        f"{layout.modules[module]}.{'bias' if leaf == 'bias' else 'weight'}"
      )
      convert = _CONVERSIONS[_kind(module, leaf)][1]
      result[theirs.replace("{i}", i)] = convert(x, patch)
    else:
      left.append(f"  {name}  {tuple(x.shape)}")
  if left:
    raise ValueError(
      f"{layout.title} has no place for these parameters of the model:\n"
      + "\n".join(left)
      + "\nIts Vision Transformer has a plain stem, LayerNorm before attention "
      "and MLP, and learned positions; see docs/checkpoints.md."
    )
  return _fuse(result, layout)


def with_cls_row(posemb):
  """Returns (1, tokens, width) after a row of zeros for the class token."""
  return np.pad(posemb, ((0, 0), (1, 0), (0, 0)))


def _template(name):
  """Returns the name with {i} for the number of its block, and the number."""
  pattern = r"((?:.*/)?encoderblock_|blocks\.|encoder\.layer\.)(\d+)([./].*)"
  if match := re.fullmatch(pattern, name):
    return f"{match[1]}{{i}}{match[3]}", match[2]
  return name, ""


def _renamed(layout, name):
  for pattern, replacement in layout.renamed:
    if match := re.fullmatch(pattern, name):
      name = match.expand(replacement)
  return name


def _fold_layer_scale(flat, layout):
  """Returns `flat` with factors on a layer's result within its parameters."""
  result = dict(flat)
  for name, gamma in flat.items():
    template, i = _template(name)
    if template in layout.scales:
      module = layout.scales[template].replace("{i}", i)
      gamma = result.pop(name).astype(np.float32)
      for leaf in {f"{module}.weight", f"{module}.bias"} & flat.keys():
        x = flat[leaf]
        result[leaf] = x * gamma.reshape(-1, *[1] * (x.ndim - 1))
  return result


def _split(flat, layout):
  """Returns `flat` with fused modules taken apart."""
  result = {}
  for name, x in flat.items():
    template, i = _template(name)
    module, _, leaf = template.rpartition(".")
    parts = layout.fused.get(module)
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


def _fuse(flat, layout):
  """The inverse of `_split`."""
  flat = dict(flat)
  for fused, parts in layout.fused.items():
    first = re.escape(parts[0]).replace(r"\{i\}", r"(\d+)")
    for name in list(flat):
      if match := re.fullmatch(rf"{first}\.(weight|bias)", name):
        i, leaf = match[1], match[match.lastindex]
        names = [f"{p}.{leaf}".replace("{i}", i) for p in parts]
        flat[f"{fused}.{leaf}".replace("{i}", i)] = np.concatenate(
          [flat.pop(n) for n in names]
        )
  return flat


def _kind(module, leaf) -> str:
  """Returns the key in `_CONVERSIONS` of a module's kernel, scale or bias."""
  last = module.rpartition("/")[2]
  if module == "stem/ln0":
    return "patch"
  heads = last in ("query", "key", "value")
  if leaf == "bias":
    return "bias of heads" if heads else "vector"
  if re.search(r"(LayerNorm_\d|encoder_norm|stem/ln\d)$", module):
    return "vector"
  if heads:
    return "to heads"
  return {"embedding": "convolution", "out": "from heads"}.get(last, "matrix")


# From PyTorch's array x to ours, and from ours to PyTorch's, by what it is;
# n is the number of heads, (p, q, c) the shape of a patch.
_CONVERSIONS = {
  "vector": (lambda x, n, patch: x.reshape(*x.shape), lambda x, patch: x),
  "matrix": (
    lambda x, n, patch: x.transpose(1, 0),
    lambda x, patch: x.T,
  ),
  "convolution": (
    lambda x, n, patch: x.transpose(2, 3, 1, 0),
    lambda x, patch: x.transpose(3, 2, 0, 1),
  ),
  "patch": (  # theirs is in the order of a flattened convolution
    lambda x, n, pqc: x.reshape(pqc[2], *pqc[:2]).transpose(1, 2, 0).ravel(),
    lambda x, pqc: x.reshape(pqc).transpose(2, 0, 1).ravel(),
  ),
  "bias of heads": (  # (heads * d,)
    lambda x, n, patch: x.reshape(n, -1),
    lambda x, patch: x.reshape(-1),
  ),
  "to heads": (  # (heads * d, width)
    lambda x, n, patch: x.T.reshape(x.shape[1], n, -1),
    lambda x, patch: x.reshape(x.shape[0], -1).T,
  ),
  "from heads": (  # (width, heads * d)
    lambda x, n, patch: x.T.reshape(n, -1, x.shape[0]),
    lambda x, patch: x.reshape(-1, x.shape[-1]).T,
  ),
}


def _our_leaf(module, leaf):
  """Returns what we call a "weight" or "bias" of PyTorch's."""
  if leaf == "bias":
    return "bias"
  kind = _kind(module, leaf)
  return "scale" if kind in ("vector", "patch") else "kernel"
