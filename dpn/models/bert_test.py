"""BERT against transformers' BertModel, and in a checkpoint of two towers."""

import pathlib
import re

import jax
import numpy as np
import pytest

import dpn.tasks
from dpn import trees
from dpn.models import bert
from dpn.weights import load

GOLDEN = np.load(pathlib.Path(__file__).parent.parent / "testdata/bert.npz")
SMALL = {
  **{"width": 8, "depth": 2, "mlp_dim": 12, "num_heads": 2},
  **{"vocab_size": 13, "max_length": 7},
}
# Ours, which are flaxformer's names → PyTorch's.
NAMES = (
  (r"BertEncoder_0/", ""),
  (r"embedder/embedders_token_ids", "embeddings.word_embeddings"),
  (r"embedder/embedders_position_ids", "embeddings.position_embeddings"),
  (r"embedder/embedders_segment_ids", "embeddings.token_type_embeddings"),
  (r"^layer_norm", "embeddings.LayerNorm"),
  (r"encoder_block/layer_sequence/layers_", "encoder.layer."),
  (r"attention_block/attention_layer/", "attention.self."),
  (r"attention_block/", "attention.output."),
  (r"mlp_block/mlp/dense_layer", "intermediate.dense"),
  (r"mlp_block/", "output."),
  (r"dense_layer", "dense"),
  (r"layer_norm", "LayerNorm"),
  (r"(kernel|scale|embedding)$", "weight"),
  (r"/", "."),
)


def _golden(name):
  theirs = name
  for pattern, replacement in NAMES:
    theirs = re.sub(pattern, replacement, theirs)
  x = GOLDEN[theirs]
  return x.T if name.endswith("kernel") else x


@pytest.fixture(name="params", scope="module")
def _params():
  """Returns PyTorch's parameters as ours; all of them have to be used."""
  model = bert.Model(**SMALL)
  shapes = jax.eval_shape(model.init, jax.random.key(0), GOLDEN["text"])
  flat = trees.flatten(shapes["params"])
  assert len(flat) == len(GOLDEN.files) - 2
  params = {name: _golden(name) for name in flat}
  assert {k: x.shape for k, x in params.items()} == {
    k: x.shape for k, x in flat.items()
  }
  return params


def test_equals_transformers(params):
  text = GOLDEN["text"]
  tree = {"params": trees.unflatten(params)}
  z, out = jax.jit(bert.Model(**SMALL).apply)(tree, text)
  real = text != 0  # what is computed for padding does not matter
  np.testing.assert_allclose(
    out["transformed"][real], GOLDEN["transformed"][real], rtol=1e-4, atol=1e-5
  )
  np.testing.assert_array_equal(z, out["transformed"][:, 0])


def test_a_checkpoint_of_big_vision(params, tmp_path):
  """With big_vision's options; the text tower's names as it saves them."""
  small = {k: v for k, v in SMALL.items() if k != "max_length"}
  model = {
    "image": {"variant": "mu/16"},
    "text": {"config": "base", "head_zeroinit": False, **small},
    "text_model": "proj.flaxformer.bert",
    "out_dim": (None, 32),
  }
  task = dpn.tasks.make({"task": "contrastive", "model": model})
  batch = {"image": np.zeros((3, 32, 32, 3)), "text": GOLDEN["text"]}
  fresh = jax.eval_shape(task.init, jax.random.key(0), batch)["params"]
  flat = {
    name: np.full(x.shape, 0.5, np.float32)
    for name, x in trees.flatten(fresh).items()
  }
  table = "BertEncoder_0/embedder/embedders_position_ids/embedding"
  assert flat[f"txt/{table}"].shape == (512, 8)
  flat |= {f"txt/{k}": x for k, x in params.items() if k != table}
  flat[f"txt/{table}"][:7] = params[table]
  path = str(tmp_path / "lit.npz")
  np.savez(path, **{f"params/{name}": x for name, x in flat.items()})
  loaded = load.load_towers(
    path, {"params": fresh}, task.towers, options=task.model_options()
  )["params"]
  predict = jax.jit(task.predict_fns()["predict"])
  _, ztxt, out = predict({"params": loaded}, {"text": GOLDEN["text"]})
  want = GOLDEN["transformed"][:, 0]
  np.testing.assert_allclose(out["txt/pre_logits"], want, rtol=1e-4, atol=1e-5)
  # A head of ones halved gives the same in all dimensions.
  np.testing.assert_allclose(np.abs(ztxt), np.full((3, 32), 32**-0.5), 1e-5)
  norms = task.grad_norms(loaded)
  assert norms.keys() >= {"txt/embedding", "txt/block00", "txt/block01"}


def test_sizes_of_the_paper():
  """BERT-base has 110M parameters, of which its pooler is 0.6M."""
  text = np.zeros((1, 16), np.int32)
  model = bert.Model(768)
  shapes = jax.eval_shape(model.init, jax.random.key(0), text)["params"]
  count = sum(x.size for x in jax.tree.leaves(shapes["BertEncoder_0"]))
  assert count == 109_482_240 - 768 * 769  # transformers' BertModel
  assert bert.Model(config="large").config.width == 1024


def test_dropout_is_of_training_only():
  model, text = bert.Model(**SMALL, dropout=0.5), GOLDEN["text"]
  variables = jax.jit(model.init)(jax.random.key(0), text)
  apply = jax.jit(
    lambda rngs: model.apply(variables, text, train=True, rngs=rngs)[0]
  )
  draw = lambda seed: apply({"dropout": jax.random.key(seed)})
  np.testing.assert_array_equal(draw(0), draw(0))
  assert np.abs(draw(0) - draw(1)).max() > 0.1


def test_bad_input():
  with pytest.raises(ValueError, match="Unknown config of BERT: 'bas'"):
    bert.Model(config="bas")
  with pytest.raises(ValueError, match="must be a multiple of num_heads=3"):
    bert.Model(num_heads=3, width=8)
  with pytest.raises(ValueError, match="Did you mean 'max_length'"):
    bert.Model(max_len=3)
  with pytest.raises(ValueError, match="Unknown model option 'variant'"):
    bert.Model(variant="B")
  model = bert.Model(**SMALL)
  long = np.zeros((1, 8), np.int32)
  with pytest.raises(ValueError, match="text has 8 tokens, but BERT has"):
    jax.eval_shape(model.init, jax.random.key(0), long)
