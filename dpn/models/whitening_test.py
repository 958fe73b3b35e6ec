"""Whitening against SciPy's matrix square root, in double precision."""

import logging

import jax
import numpy as np
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
    fresh = norms.init(jax.random.key(0), patches, method="pre_embed")
    state = {
      name: {"stem": stats} for name, stats in fresh.items() if name != "params"
    }
    fitted = stem.fit(config, state, iter([image]))
    if stem_ln == "pre":
      assert fitted == {}
      continue
    stats = fitted["batch_stats"]["stem"]
    got = norms.apply(
      {**fresh, "batch_stats": stats}, patches, method="pre_embed"
    )
    want = (patches - stats["whiten"]["mean"]) @ stats["whiten"]["matrix"]
    if stem_ln == "whiten_ln":
      mean, var = want.mean(-1, keepdims=True), want.var(-1, keepdims=True)
      want = (want - mean) / np.sqrt(var + 1e-6)
    np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-4)
