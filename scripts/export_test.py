"""Exported programs compute what the checkpoints' libraries computed."""

import json

import jax
import numpy as np
import pytest

from dpn.models import vit
from dpn.scripts import export
from dpn.weights import conftest as testing

pytest.importorskip("flatbuffers")


def reloaded(path):
  return jax.export.deserialize(path.read_bytes())


@pytest.mark.parametrize("kind", ["timm_tok", "timm_map", "hf_classifier"])
def test_logits_in_any_batch(tmp_path, kind):
  path = testing.write_torch(tmp_path, kind)
  out = tmp_path / "model.stablehlo"
  export.main([path, str(out), "--set", "num_heads=2"])
  program = reloaded(out)
  assert program.platforms == ("cpu", "cuda", "tpu")
  want = testing.GOLDEN[f"{kind}/logits"]
  for image, logits in (
    (testing.IMAGE, want),
    (np.tile(testing.IMAGE[:1], (3, 1, 1, 1)), np.tile(want[:1], (3, 1))),
  ):
    got = program.call(image)
    np.testing.assert_allclose(got, logits, rtol=1e-4, atol=1e-5)
  about = json.loads((tmp_path / "model.stablehlo.json").read_text())
  assert about["input"] == ["batch", 9, 9, 3]
  assert about["output"] == {"logits": ["batch", "5"]}
  assert vit.Model(**about["model"]).config.num_heads == 2


def test_an_intermediate_of_dual_patchnorm(tmp_path):
  path, params = testing.write_ours(tmp_path)
  program, _ = export.export(path, "encoder/block01/+mlp", ["cpu"])
  options = {**testing.TORCH, "stem_ln": "dpn", "pool_type": "tok"}
  _, out = vit.Model(5, **options).apply({"params": params}, testing.IMAGE)
  got = jax.export.deserialize(program).call(testing.IMAGE)
  want = out["encoder"]["block01"]["+mlp"]
  np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def test_what_cannot_be(tmp_path):
  path, _ = testing.write_ours(tmp_path)
  with pytest.raises(ValueError, match=r"nknown output 'logit'.*'logits'"):
    export.export(path, "logit")
  for name in ("gpu", ""):
    with pytest.raises(ValueError, match=f"nknown platform '{name}'.*cuda"):
      export.export(path, platforms=["cpu", name])
  with pytest.raises(ValueError, match="xla, which runs on every platform"):
    export.export(path, options={"attn_impl": "cudnn"})
  oblong = testing.write(tmp_path, testing.golden("tok"))
  with pytest.raises(ValueError, match="does not tell the size of its images"):
    export.export(oblong)
