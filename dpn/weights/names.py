"""Vision Transformers under the names of PyTorch libraries, and back.

A library is one table (`Names`), from which both directions follow. PyTorch's
arrays differ from ours: a Linear's weight is our kernel transposed, with all
heads on one axis; a convolution's is (width, channels, rows, cols).
docs/checkpoints.md lists the names side by side.
"""

import dataclasses
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import einops
import numpy as np

from dpn.weights.files import Flat

BLOCK = "Transformer/encoderblock_{i}/"
ATTENTION = BLOCK + "MultiHeadDotProductAttention_0/"
QKV = tuple(ATTENTION + x for x in ("query", "key", "value"))
MAP_ATTENTION = "MAPHead_0/MultiHeadDotProductAttention_0/"
# Options of the one architecture that all libraries have.
PLAIN: dict[str, list] = {
  "stem": ["patch"],
  "norm": ["layernorm"],
  "qk_norm": ["none"],
  "v_norm": ["none"],
  "logit_scale": ["sqrt"],
  "rope": ["none"],
  "mlp": ["mlp"],
  "posemb": ["learn", "sincos1d", "sincos2d", "sincos2d_lape"],
  "posemb_join": ["add"],
  "block_ln": ["placement"],
  "block_ln_kw": [{"sa": "pre", "mlp": "pre", "post": "branch"}],
  "cls_blocks": [None],
  "registers": [0],
  "prefix_norm": ["shared"],
  "head_dim": [None],
  "stem_eps": [1e-6],
  "layer_scale": [None],
  "final_norm": [True],
  "pool_norm": [False],
  "weight_norm": ["none"],
}
# The ones among these that neither names nor shapes of parameters show.
BLOCKS = {
  k: PLAIN[k][0] for k in ("block_ln", "block_ln_kw", "rope", "logit_scale")
}
# Stems whose LayerNorms have names elsewhere; other stems' are not LayerNorms,
# or follow the sum with the positions. The index is 2·(has ln0) + (has ln1).
STEMS = ("none", "post", "pre", "dpn")
_UNUSED = ("mask_token", "embeddings.mask_token")  # except in pretraining
_NORMS = r"(LayerNorm_\d|encoder_norm|fc_norm|stem/ln\d|(query|key)_ln)$"


@dataclasses.dataclass(frozen=True)
class Names:
  """How a library names the parts of a Vision Transformer.

  Attributes:
    title: of the library.
    sign: an array's name that all models of the library have and no others.
    modules: their module → ours, or → our modules whose arrays it
      concatenates; {i} is the number of a block.
    arrays: their array → ours, for arrays outside of modules.
    renamed: (pattern, replacement) for other names of the same things.
    scales: their factors per channel → the module whose result they multiply.
    extra: our modules for which the library's own model has no place.
    embedding: their Linear from pixels to tokens, with patches in our order of
      pixels; empty if it is a convolution, whose kernel is `sign`.
    biases: our biases that some models of the library have in no block, which
      are then zero.
    implied: our arrays of a block that the library lacks, as they are the
      identity or zero, if a function of (heads, d, width) says so.
  """

  title: str
  sign: str
  modules: Mapping[str, str | tuple[str, ...]]
  arrays: Mapping[str, str]
  renamed: tuple[tuple[str, str], ...] = ()
  scales: Mapping[str, str] = dataclasses.field(default_factory=dict)
  extra: tuple[str, ...] = ()
  embedding: str = ""
  biases: tuple[str, ...] = ()
  implied: Mapping[str, Callable[[int, int, int], bool]] = dataclasses.field(
    default_factory=dict
  )

  def parts(self, module: str) -> tuple[str, ...]:
    """Returns our modules that make up one of theirs."""
    ours = self.modules[module]
    return (ours,) if isinstance(ours, str) else ours

  def rename(self, name: str) -> str:
    for pattern, replacement in self.renamed:
      if match := re.fullmatch(pattern, name):
        name = match.expand(replacement)
    return name

  def matches(self, flat: Flat) -> bool:
    """Returns whether these are the names of this library."""
    signs = {self.sign, self.embedding or self.sign}
    return signs <= {self.rename(name) for name in flat}


def to_ours(
  flat: Flat,
  names: Names,
  num_heads: int,
  patch: Sequence[int] | None = None,
  layer_scale: bool = False,
) -> Flat:
  """Returns the arrays of another library under our names, in our shapes.

  Names that the table does not have stay as they are.

  Args:
    flat: arrays by name.
    names: of the library.
    num_heads: of the attention; the arrays do not tell.
    patch: (rows, cols, channels), if the embedding's kernel does not tell.
    layer_scale: keep factors of branches, `LayerScale_0` and `LayerScale_1`,
      which otherwise are multiplied into the layers before them.

  Raises:
    ValueError: an array has a shape that its name does not allow.
  """
  # A class token may be (0, width), a head (0, width), too.
  flat = {names.rename(name): x for name, x in flat.items() if x.size}
  flat = {k: x for k, x in flat.items() if k not in _UNUSED}
  if not names.embedding:
    kernel = flat[names.sign].shape  # (width, channels, rows, cols)
    patch = (*kernel[2:], *kernel[1:2])
  elif not patch:  # of a model without such a kernel
    patch = (1, 1, *flat[names.embedding].shape[-1:])
  sizes = {"h": num_heads, **dict(zip("pqc", patch, strict=False))}
  result: dict[str, Any] = {}
  scales = _layer_scales(names)
  flat = flat if layer_scale else _fold_layer_scale(flat, names)
  for name, x in flat.items():
    template, i = _split_number(name)
    module, _, leaf = template.rpartition(".")
    if template in scales:
      result[scales[template].replace("{i}", i)] = x
      continue
    if module not in names.modules or leaf not in ("weight", "bias"):
      ours = names.arrays.get(name, name)
      if ours in ("cls", "pos_embedding") and x.ndim == 2:
        x = x[None]
      result[ours] = x
      continue
    parts = names.parts(module)
    try:
      for part, piece in zip(parts, np.split(x, len(parts)), strict=True):
        is_norm = leaf == "weight" and re.search(_NORMS, part)
        our_leaf = "scale" if is_norm else leaf.replace("weight", "kernel")
        ours = f"{part}/{our_leaf}".replace("{i}", i)
        if ours in result:
          raise ValueError(f"another array is our {ours!r}, too")
        result[ours] = _rearranged(piece, sizes, *_axes(ours, names))
    except (ValueError, IndexError, einops.EinopsError) as error:
      why = str(error).splitlines()[-1].strip()  # einops has more before it
      raise ValueError(
        f"{name} has shape {tuple(x.shape)}, from which our array "
        f"cannot be made with num_heads={num_heads} and patches of {patch} "
        f"({why}). The file has another architecture, or these are wrong."
      ) from error
  for name, x in _implied(result, names).items():
    result.setdefault(name, x)
  return result | _zero_biases(result, names)


def _zero_biases(flat, names):
  """Returns the biases that no block has, as zeros, for existing kernels."""
  found = {re.sub("/kernel$", "/bias", name): x for name, x in flat.items()}
  result = {}
  for template in names.biases:
    some = re.compile(template.replace("{i}", r"\d+"))
    if not any(map(some.fullmatch, flat)):
      for bias in filter(some.fullmatch, found):
        result[bias] = np.zeros(found[bias].shape[-1], np.float32)
  return result


def _implied(flat, names):
  """Returns the arrays that the library leaves out of such a model."""
  result = {}
  for query in [k for k in flat if k.endswith("/query/kernel")]:
    attention, shape = query.removesuffix("query/kernel"), flat[query].shape
    width, heads, d = shape
    for template, is_implied in names.implied.items():
      leaf = template.rpartition("/")[2]
      if is_implied(heads, d, width):
        x = np.zeros(width)
        if leaf == "kernel":
          x = np.eye(width).reshape(heads, d, width)
        result[f"{attention}out/{leaf}"] = x.astype(np.float32)
  return result


def from_ours(flat: Flat, names: Names) -> Flat:
  """Returns our arrays under the names and in the shapes of another library.

  The model must have looped blocks. Position embeddings are passed on as they
  are, with or without the class token's row.

  Raises:
    ValueError: listing the parameters that the library has no names for.
  """
  arrays = {ours: theirs for theirs, ours in names.arrays.items()}
  modules = {part: m for m in names.modules for part in names.parts(m)}
  scales = {ours: theirs for theirs, ours in _layer_scales(names).items()}
  sizes = dict(zip("pqc", flat["embedding/kernel"].shape, strict=False))
  result: dict[str, Any] = {}
  pieces: dict[str, dict] = {}
  left: list[str] = []
  implied = _implied(flat, names)
  for name, x in flat.items():
    if name in implied and np.array_equal(x, implied[name]):
      continue
    template, i = _split_number(name)
    module, _, leaf = template.rpartition("/")
    if name in arrays:
      result[arrays[name]] = x[0] if names.embedding else x
    elif template in scales:
      result[scales[template].replace("{i}", i)] = x
    elif name in implied:
      left.append(f"  {name}  {tuple(x.shape)}, which is not zero")
    elif module in modules and leaf in ("kernel", "scale", "bias"):
      leaf = "bias" if leaf == "bias" else "weight"
      theirs = f"{modules[module]}.{leaf}".replace("{i}", i)
      place = names.parts(modules[module]).index(module)
      theirs_axes, axes = _axes(name, names)
      piece = _rearranged(x, sizes, axes, theirs_axes)
      pieces.setdefault(theirs, {})[place] = piece
    else:
      left.append(f"  {name}  {tuple(x.shape)}")
  if left:
    raise ValueError(
      f"{names.title} has no place for these parameters of the model, see "
      "docs/checkpoints.md:\n" + "\n".join(left)
    )
  for name, by_place in pieces.items():
    result[name] = np.concatenate([by_place[i] for i in sorted(by_place)])
  return result


def _split_number(name):
  """Returns the name with {i} for the number of its block, and the number."""
  start = (
    r"(?:.*/)?encoderblock_|blocks\.|encoder\.layer\.|transformer\.layers\."
  )
  pattern = rf"({start})(\d+)([./].*)"
  if match := re.fullmatch(pattern, name):
    return f"{match[1]}{{i}}{match[3]}", match[2]
  return name, ""


def _layer_scales(names):
  """Returns {their factors of a branch: ours}, of attention and MLP."""
  return {
    theirs: f"{BLOCK}LayerScale_{i}" for i, theirs in enumerate(names.scales)
  }


def _fold_layer_scale(flat, names):
  """Multiplies factors on a layer's result into its parameters."""
  result = dict(flat)
  for name, gamma in flat.items():
    template, i = _split_number(name)
    if template in names.scales:
      module = names.scales[template].replace("{i}", i)
      gamma = result.pop(name).astype(np.float32)
      for leaf in {f"{module}.weight", f"{module}.bias"} & flat.keys():
        x = flat[leaf]
        result[leaf] = x * gamma.reshape(-1, *[1] * (x.ndim - 1))
  return result


# By our names, the first that matches: the axes of PyTorch's array and of ours.
# There are h heads, and (p, q, c) rows, cols and channels of a patch.
_AXES = (
  (r"stem/ln0/.*", "(c p q)", "(p q c)"),  # a flattened convolution's order
  (r"embedding/kernel", "width c p q", "p q c width"),  # a convolution
  (r".*/(query|key|value)/kernel", "(h d) width", "width h d"),
  (r".*/(query|key|value)/bias", "(h d)", "h d"),
  (r".*/out/kernel", "width (h d)", "h d width"),
  (r".*/kernel", "outputs inputs", "inputs outputs"),
  (r".*", "...", "..."),
)
# Of an embedding that is a Linear, whose patches have our order.
_OF_LINEAR = (
  (r"embedding/kernel", "width (p q c)", "p q c width"),
  (r"stem/ln0/.*", "...", "..."),
)


def _axes(name, names):
  """Returns the axes of PyTorch's array, and those of ours."""
  table = (*(_OF_LINEAR if names.embedding else ()), *_AXES)
  return next(both for p, *both in table if re.fullmatch(p, name))


def _rearranged(x, sizes, axes, new_axes):
  known = {k: n for k, n in sizes.items() if k in re.findall(r"\w+", axes)}
  return einops.rearrange(x, f"{axes} -> {new_axes}", **known)


def patch_of(pixels: int, size: Sequence[int] | None) -> tuple[int, int, int]:
  """Returns (rows, cols, channels) of a patch.

  Args:
    pixels: how many numbers the patch has.
    size: (rows, cols), None for a square in colour or else in gray.

  Raises:
    ValueError: `size` does not divide `pixels`, or there is no such square.
  """
  if size is None:
    sides = ((channels, math.isqrt(pixels // channels)) for channels in (3, 1))
    found = [(n, n, c) for c, n in sides if n * n * c == pixels]
  else:
    (rows, cols), (channels, rest) = size, divmod(pixels, math.prod(size))
    found = [] if rest or not channels else [(rows, cols, channels)]
  if not found:
    raise ValueError(
      f"its patches have {pixels} numbers, which are no "
      f"{'square' if size is None else tuple(size)} of 3 or 1 channels. Give "
      "the patches' rows and columns: convert it with --set patch_size=[8,4]."
    )
  return found[0]
