"""Whitening against SciPy's matrix square root, in double precision."""

import dataclasses
import logging

import jax
import numpy as np
import pytest
import scipy.linalg

from dpn.models import stem, vit, whitening


def test_zca(caplog):
  random = np.random.RandomState(0)
  mix = random.randn(12, 12) * np.geomspace(3, 0.003, 12)
  x = (random.randn(40, 25, 12) @ mix + 0.4).astype(np.float32)
  with caplog.at_level(logging.INFO, "absl"):
    # Of the last batch nothing is read: 30 images were asked for.
    fitted = whitening.fit((x[:20], x[20:30], x[30:]), 30)
  assert "the patches of 30 images" in caplog.text
  patches = x[:30].reshape(-1, 12).astype(np.float64)
  covariance = np.cov(patches.T, bias=True)
  root = scipy.linalg.sqrtm(covariance + whitening.EPS * np.eye(12))
  np.testing.assert_allclose(fitted["mean"], patches.mean(0), atol=1e-6)
  want = np.linalg.inv(root)
  np.testing.assert_allclose(
    fitted["matrix"], want, rtol=0, atol=3e-3 * want.max()
  )
  white = whitening.Whitening().apply({"batch_stats": fitted}, x[:30])
  got = np.cov(np.asarray(white, np.float64).reshape(-1, 12).T, bias=True)
  want = np.linalg.solve(covariance + whitening.EPS * np.eye(12), covariance)
  np.testing.assert_allclose(got, want, atol=2e-3)
  np.testing.assert_allclose(white.mean((0, 1)), 0, atol=1e-3)


def test_where_it_is():
  """Before LayerNorm, if there is one; other stems have nothing to fit."""
  image = np.random.RandomState(0).uniform(-1, 1, (8, 8, 12, 3)).astype("f")
  patches = stem.patchify(image, (2, 2))
  for stem_ln in ("pre", "whiten", "whiten_ln"):
    config = vit.Config(patch_size=(2, 2), stem_ln=stem_ln)
    norms = stem.StemNorms(stem_ln)
    fresh = norms.init(jax.random.key(0), patches)
    state = {
      name: {"stem": stats} for name, stats in fresh.items() if name != "params"
    }
    fitted = stem.fit(config, state, iter([image]))
    if stem_ln == "pre":
      assert fitted is state
      continue
    stats = fitted["batch_stats"]["stem"]
    got = norms.apply({**fresh, "batch_stats": stats}, patches)
    want = (patches - stats["whiten"]["mean"]) @ stats["whiten"]["matrix"]
    if stem_ln == "whiten_ln":
      mean, var = want.mean(-1, keepdims=True), want.var(-1, keepdims=True)
      want = (want - mean) / np.sqrt(var + 1e-6)
    np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("stem_ln", ["none", "dpn"])
def test_tokens_are_white_at_first(stem_ln):
  """What enters the embedding is whitened by it, LayerNorm or not."""
  random = np.random.RandomState(0)
  image = random.uniform(-1, 1, (64, 8, 12, 3)).cumsum(2).astype("f")
  config = vit.Config(
    patch_size=(2, 2), width=20, weight_init="whiten", stem_ln=stem_ln
  )
  model = vit.ViT(3, dataclasses.replace(config, depth=1, num_heads=2))
  fresh = model.init(jax.random.key(0), image[:1])
  fitted = stem.fit(config, fresh, iter([image[:40], image[40:]]))["params"]
  fitted, others = fitted.pop("embedding"), fitted
  assert all(others[name] is fresh["params"][name] for name in others)
  x = stem.patchify(image, (2, 2)).reshape(-1, 12).astype(np.float64)
  if stem_ln == "dpn":
    x = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1) + 1e-6)[:, None]
  tokens = x @ fitted["kernel"].reshape(12, 20) + fitted["bias"]
  np.testing.assert_allclose(tokens.mean(0), 0, atol=1e-4)
  got = np.cov(tokens.T, bias=True)
  values = np.linalg.eigvalsh(np.cov(x.T, bias=True))[::-1]
  # Twelve directions of variance v / (v + eps), and eight of them turned round.
  want = np.diag(values / (values + 5e-4))
  np.testing.assert_allclose(got[:12, :12], want, atol=2e-3)
  np.testing.assert_allclose(got[:12, 12:], -want[:, :8], atol=2e-3)
