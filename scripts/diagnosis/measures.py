"""Measures what normalization changes: patches, signals, gradients, invariance.

Everything returned consists of numbers and lists, to be written as JSON.
"""

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from dpn import trees
from dpn.models import stem
from dpn.tasks import base
from dpn.trainers import build, restore

LAYERNORM_EPS = 1e-6
QUANTILES = (5, 25, 50, 75, 95)  # percent
EMBEDDING = "embedding"
# Images x become contrast · x + brightness, in the units that the model sees.
CHANGES = [(1.0, b) for b in (-0.4, -0.2, -0.1, 0.1, 0.2, 0.4)] + [
  (a, 0.0) for a in (0.25, 0.5, 0.75, 1.25, 1.5, 2.0)
]


def spectra(found: Mapping[str, Mapping[str, Any]]) -> pd.DataFrame:
  """Returns effective ranks and top shares as text, by name."""
  rows = {
    name: {
      "effective rank": f"{part['effective_rank']:.1f}",
      "largest direction": f"{part['top_share']:.0%}",
    }
    for name, part in found.items()
  }
  return pd.DataFrame.from_dict(rows, orient="index")


def conditioning(
  images: Iterable[np.ndarray], patch_size: tuple[int, int]
) -> dict[str, dict[str, Any]]:
  """Returns how evenly patches fill their space, by how they are normalized.

  The embedding's kernel learns as fast as the second moments E[x xᵀ] of its
  inputs allow. Their eigenvalues, as shares of their sum, are the `spectrum`;
  the first is the `top_share`, the exponential of their entropy the
  `effective_rank` (Roy and Vetterli, EUSIPCO 2007).

  Args:
    images: batches (batch, rows, cols, channels).
    patch_size: (P, Q) in pixels.

  Returns:
    {"raw": …, "channels standardized": …, "LayerNorm": …}.
  """
  count, total, raw, normalized = 0, 0, 0, 0
  for batch in images:
    patches = np.asarray(stem.patchify(batch, patch_size), np.float64)
    x = patches.reshape(-1, patches.shape[-1])  # (patches, P * Q * channels)
    centred = x - x.mean(-1, keepdims=True)
    y = centred / np.sqrt(x.var(-1, keepdims=True) + LAYERNORM_EPS)
    count, total = count + len(x), total + x.sum(0)
    raw, normalized = raw + x.T @ x, normalized + y.T @ y
  channels = batch.shape[-1]
  return {
    "raw": spectrum(raw / count),
    "channels standardized": spectrum(
      _standardize(raw / count, total / count, channels)
    ),
    "LayerNorm": spectrum(normalized / count),
  }


def _standardize(moments, mean, channels):
  """Returns the second moments of inputs whose channels are standardized."""
  by_channel = lambda x: np.tile(
    x.reshape(-1, channels).mean(0), len(x) // channels
  )
  shift = by_channel(mean)
  variance = by_channel(np.diag(moments)) - shift**2
  cross = np.outer(mean, shift)
  centred = moments - cross - cross.T + np.outer(shift, shift)
  scale = 1 / np.sqrt(np.maximum(variance, 1e-12))
  return centred * np.outer(scale, scale)


def spectrum(moments: np.ndarray) -> dict[str, Any]:
  """Returns the `conditioning` of inputs that have these second moments."""
  values = np.maximum(np.linalg.eigvalsh(moments)[::-1], 0)
  shares = values / values.sum()
  positive = shares[shares > 0]
  return {
    "top_share": float(shares[0]),
    "effective_rank": float(np.exp(-(positive * np.log(positive)).sum())),
    "spectrum": shares.tolist(),
  }


def short_training(
  run: build.Run,
) -> tuple[base.Variables, dict[str, list[float]]]:
  """Trains all steps of a run, from where its config begins.

  Returns:
    The variables after training; and by step the loss, and the embedding's
    share, in [0, 1], of the norms of the whole gradient and the whole update. A
    step that changes nothing, as the first of a warmup, has the share 0.

  Raises:
    ValueError: the loss is not finite.
  """
  task = run.step.task

  @functools.partial(jax.jit, donate_argnums=0)
  def step(state, batch):
    new, values = run.step.update(state, batch)
    updates = jax.tree.map(jnp.subtract, new.params, state.params)
    norms = task.grad_norms(updates)
    if EMBEDDING not in norms:
      raise ValueError(
        f"The task's gradient norms are of {', '.join(norms)}; there is no "
        f"{EMBEDDING!r} among them, whose share this measures."
      )
    return new, {
      "loss": values["loss"],
      "gradient": values[f"grad_norm/{EMBEDDING}"] / values["l2_grads"],
      "update": norms[EMBEDDING] / jnp.maximum(trees.l2(updates), 1e-30),
    }

  rows, state = [], restore.first_state(run)[0]
  batches = run.batches(0)
  for i in range(run.total_steps):
    state, row = step(state, next(batches))
    # Waits, as steps that overlap on several CPU devices can deadlock.
    rows.append(jax.device_get(row))
    if not np.isfinite(rows[-1]["loss"]):
      raise ValueError(
        f"The loss is {rows[-1]['loss']} at step {i + 1} of the short "
        "training: give a lower --config.lr."
      )
  batches.close()
  columns = {key: [float(row[key]) for row in rows] for key in rows[0]}
  return state.variables, columns


def signals(
  predict: Callable, variables: base.Variables, batch: base.Batch
) -> dict[str, Any]:
  """Returns norms of tokens and positions, and measures of the attention.

  Args:
    predict: (variables, batch) → (result, intermediates) of a `vit.Model`.
    variables: of the model.
    batch: of images.

  Returns:
    `token_norms`: `QUANTILES` over the tokens that leave the stem.
    `position_norms`: the same of learned position embeddings, if there are any.
    `attention_entropy`: by block, the mean over heads and queries, as a share
    of the entropy of uniform attention.
    `largest_logit`: by block, the largest magnitude of a logit.
  """

  @jax.jit
  def measure(variables, batch):
    _, out = predict(variables, batch)
    blocks = out.get("encoder", {})
    names = sorted(name for name in blocks if name.startswith("block"))
    attention = [_attention(blocks[name]) for name in names]
    entropy, largest = zip(*attention, strict=True)
    return _norms(out["stem"]), jnp.stack(entropy), jnp.stack(largest)

  tokens, entropy, largest = jax.device_get(measure(variables, batch))
  quantiles = lambda norms: np.percentile(norms, QUANTILES).tolist()
  found = {
    "token_norms": quantiles(tokens),
    "attention_entropy": entropy.tolist(),
    "largest_logit": largest.tolist(),
  }
  if "pos_embedding" in variables["params"]:
    norms = _norms(variables["params"]["pos_embedding"])
    found["position_norms"] = quantiles(jax.device_get(norms))
  return found


def _norms(x):
  return jnp.linalg.norm(x.astype(jnp.float32), axis=-1)


def _attention(out):
  """Returns the entropy and the largest logit of a block's attention."""
  q, k = (out[name].astype(jnp.float32) for name in ("query", "key"))
  logits = jnp.einsum("bqhd,bkhd->bhqk", q, k) * q.shape[-1] ** -0.5
  if out["attn_bias"] is not None:
    logits += out["attn_bias"]
  weights = jax.nn.softmax(logits)
  entropy = jax.scipy.special.entr(weights).sum(-1).mean()
  return entropy / np.log(logits.shape[-1]), jnp.abs(logits).max()


def invariance(
  predict: Callable, variables: base.Variables, batch: base.Batch
) -> dict[str, Any]:
  """Returns how much `CHANGES` of contrast and brightness change the outputs.

  For the tokens that leave the stem and the representation that the head sees,
  this is the norm of the change by the norm of what it changes; for predictions
  (of pixels, in maps), the share that stays. Arguments are as in `signals`.

  Returns:
    `changes`: a dict for each change; and `another_image`: one for replacing
    each image by its neighbour in the batch.
  """

  @jax.jit
  def run(variables, image):
    result, out = predict(variables, {**batch, "image": image})
    seen = out["pre_logits_2d" if result.ndim == 4 else "pre_logits"]
    return out["stem"], seen, jnp.argmax(result, -1)

  image = batch["image"]
  before = jax.device_get(run(variables, image))

  def change(image):
    after = jax.device_get(run(variables, image))
    tokens, seen = (
      float(np.linalg.norm(new - old) / np.linalg.norm(old))
      for new, old in zip(after[:2], before[:2], strict=True)
    )
    same = float(np.mean(after[2] == before[2]))
    return {"tokens": tokens, "representation": seen, "same_prediction": same}

  return {
    "changes": [
      {"contrast": a, "brightness": b, **change(a * image + b)}
      for a, b in CHANGES
    ],
    "another_image": change(jnp.roll(image, 1, axis=0)),
  }


def logged(rows: Iterable[Mapping[str, float]]) -> dict[str, list[float]]:
  """Returns the embedding's share of the gradient's norm, as a run logged it.

  `rows` are from metrics.jsonl. Without `log_grad_depth`, the lists are empty.
  """
  name = f"grad_norm/{EMBEDDING}"
  rows = [row for row in rows if name in row]
  return {
    "step": [row["step"] for row in rows],
    "gradient": [row[name] / row["l2_grads"] for row in rows],
  }
