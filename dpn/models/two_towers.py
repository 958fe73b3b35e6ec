"""An image and a text tower with a shared space of embeddings.

Parameter names, options and defaults are big_vision's: `img/…` is a model of
`vit`, `txt/…` one of `text`, `t` the logarithm of the temperature and `b` the
bias of the sigmoid loss, both (1,).
"""

from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from dpn import registry
from dpn.models import bert, vit
from dpn.models import text as text_lib


class Precomputed(nn.Module):
  """An image tower without parameters, for embeddings computed beforehand."""

  @nn.compact
  def __call__(self, image, *, train=False):  # (batch, width)
    del train
    if image.ndim != 2:
      raise ValueError(
        f"Got images of shape {image.shape}; image_model='precomputed' expects "
        "embeddings (batch, width), as scripts.embed_images writes them."
      )
    return image, {"pre_logits": image}


def _precomputed(num_classes=None):
  if num_classes:
    raise ValueError(
      f"out_dim[0]={num_classes}: precomputed embeddings have no head. Set "
      "out_dim=(None, width)."
    )
  return Precomputed()


IMAGE_MODELS = {"vit": vit.Model, "precomputed": _precomputed}
TEXT_MODELS = {
  "text": text_lib.Model,
  "bert": bert.Model,
  # big_vision's names
  "proj.image_text.text_transformer": text_lib.Model,
  "proj.flaxformer.bert": bert.Model,
}


class _Model(nn.Module):
  """See `Model`."""

  img: nn.Module
  txt: nn.Module
  temperature_init: float
  bias_init: float | None

  @nn.compact
  def __call__(self, image=None, text=None, *, train=False):
    """Returns `(zimg, ztxt, out)`.

    Args:
      image: (batch, rows, cols, channels), or None.
      text: (batch, tokens) int32, or None.
      train: as for the towers.

    Returns:
      Embeddings (batch, dim) of length 1, None for an input that is None; and
      a dict of every intermediate: the towers' as `img/…` and `txt/…`,
      the temperature `t`, its logarithm `t/parameter` and, if there is one,
      the bias `b`, all (1,).
    """
    out = {}
    zimg = self._embed("img", image, train, out)
    ztxt = self._embed("txt", text, train, out)
    log_t = jnp.log(self.temperature_init)
    t = self.param("t", nn.initializers.constant(log_t), (1,))
    out["t"], out["t/parameter"] = jnp.exp(t), t
    if self.bias_init is not None:
      bias = nn.initializers.constant(self.bias_init)
      out["b"] = self.param("b", bias, (1,))
    return zimg, ztxt, out

  def _embed(self, name, x, train, out):
    if x is None:
      return None
    z, inner = getattr(self, name)(x, train=train)
    out |= {f"{name}/{key}": value for key, value in inner.items()}
    square = jnp.square(z).sum(axis=1, keepdims=True)
    # Zero has no direction; the gradient of its norm would be NaN.
    norm = jnp.sqrt(jnp.where(square == 0, 1, square))
    out[f"{name}/norm"] = jnp.where(square == 0, 0, norm)
    z = out[f"{name}/normalized"] = z / (norm + 1e-8)
    return z


def Model(
  image: Mapping[str, Any] | None = None,
  text: Mapping[str, Any] | None = None,
  *,
  image_model: str = "vit",
  text_model: str = "text",
  out_dim: int | tuple[int | None, int | None] | None = 128,
  temperature_init: float = 1.0,
  bias_init: float | None = None,
) -> nn.Module:
  """Returns two towers as a Linen module.

  `model.init(rng, image, text)["params"]` and `model.apply({"params": params},
  image, text, train=False)` → `(zimg, ztxt, out)`; either input may be None.

  Args:
    image: options of the image tower; `head_zeroinit` is off by default.
    text: options of the text tower.
    image_model: `vit`, `precomputed`, or an import path.
    text_model: `text`, `bert`, or an import path.
    out_dim: width of the embeddings: the size of both heads, or of (image,
      text), where None leaves a head out: LiT has (None, 768).
    temperature_init: initial factor on similarities.
    bias_init: initial bias added to similarities; None for no bias.

  Raises:
    ValueError: on an unknown option or value, naming the nearest, and on
      embeddings of different width.
  """
  one = out_dim is None or isinstance(out_dim, int)
  dims: tuple = (out_dim, out_dim) if one else (*out_dim,)  # type: ignore[misc]
  of_head = lambda dim: dim is None or (isinstance(dim, int) and dim > 0)
  if len(dims) != 2 or not all(map(of_head, dims)):
    raise ValueError(
      f"out_dim must be a positive number or two, got {out_dim!r}."
    )
  if not temperature_init > 0:
    raise ValueError(
      f"temperature_init must be positive, got {temperature_init}: its "
      "logarithm is learned."
    )
  make_img = registry.lookup("image_model", image_model, IMAGE_MODELS)
  make_txt = registry.lookup("text_model", text_model, TEXT_MODELS)
  kw = {"num_classes": dims[0]}
  if image_model == "vit":
    # An embedding of length zero has no direction.
    kw["head_zeroinit"] = False
  img = make_img(**{**kw, **(image or {})})
  txt = make_txt(**{"num_classes": dims[1], **(text or {})})
  comparable = image_model == "vit" and hasattr(txt, "config")
  if comparable and _width(img) != _width(txt):
    raise ValueError(
      f"The image tower embeds into {_width(img)} dimensions, the text tower "
      f"into {_width(txt)}; they must be the same: set out_dim=(None, "
      f"{_width(img)}), or one number for a head on both."
    )
  return _Model(img, txt, float(temperature_init), bias_init)


def _width(tower):
  """Returns the number of dimensions that a tower embeds into."""
  rep_size = getattr(tower.config, "rep_size", False)
  if not rep_size or rep_size is True:
    rep_size = tower.config.width
  return tower.num_classes or rep_size


def options(model: nn.Module) -> dict[str, Any]:
  """Returns what determines the function of a model, see `vit.options`."""
  found = [(name, getattr(model, name, None)) for name in ("img", "txt")]
  towers = {
    name: {"num_classes": tower.num_classes, **tower.config.describe()}
    for name, tower in found
    if tower is not None and hasattr(tower, "config")
  }
  return towers | {"bias": getattr(model, "bias_init", None) is not None}
