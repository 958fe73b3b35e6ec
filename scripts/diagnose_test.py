"""Diagnoses of patches, models and runs whose numbers are known otherwise."""

import json
import re

import jax
import ml_collections
import numpy as np
import pytest
import scipy.special
import scipy.stats

from dpn import metrics
from dpn.models import vit
from dpn.scripts import conftest as testing
from dpn.scripts import convert, diagnose
from dpn.scripts.diagnosis import learned, measures, page
from dpn.trainers import conftest as runs
from dpn.trainers import loop
from dpn.weights import conftest as weights
from dpn.weights import files


@pytest.fixture(scope="module")
def run(tmp_path_factory):
  """Returns a finished run's config, folder, log and diagnosis."""
  config = runs.tiny_config(
    **{"log_training_steps": 1, "evals": {}, "model.head_zeroinit": False},
    # Plain gradient descent: updates are proportional to gradients.
    **{"grad_clip_norm": None, "optax_name": "identity", "wd": 0.0, "lr": 0.1},
    **{"schedule.warmup_steps": 1},
  )
  folder = str(tmp_path_factory.mktemp("run"))
  loop.train(config, folder)
  # The diagnosis has its own: with this one there would be hardly any steps.
  config.schedule.warmup_steps = 5
  found = diagnose.diagnose(config, folder, steps=6, examples=40)
  return config, folder, metrics.read(f"{folder}/metrics.jsonl"), found


def test_shares_are_those_of_the_run(run):
  _, _, rows, found = run
  first = found["short_training"]
  np.testing.assert_allclose(first["loss"], [r["loss"] for r in rows], 1e-5)
  want = [row["grad_norm/embedding"] / row["l2_grads"] for row in rows]
  np.testing.assert_allclose(first["gradient"], want, rtol=1e-4)
  np.testing.assert_allclose(found["logged"]["gradient"], want, rtol=1e-6)
  assert found["logged"]["step"] == [1, 2, 3, 4, 5, 6]
  # The warmup's first rate is 0.
  np.testing.assert_allclose(first["update"], [0, *want[1:]], rtol=1e-3)
  assert max(want) > 0.05


def test_the_short_training_keeps_rates_and_what_is_frozen():
  config = runs.tiny_config()
  with config.unlocked():
    del config.total_steps, config.schedule
    config.evals = {"val": {"type": "classification"}}
    config.total_epochs = 90
    config.resume = "runs/before"
  config.schedule = [
    ("head/.*", {}),
    ("embedding/.*", None),
    (".*", {"mult": 0.1, "warmup_steps": 10_000, "scale_with_batchsize": True}),
  ]
  short = diagnose.short_config(config, 100, 8)
  ours = {"warmup_percent": 0.1, "decay_type": "cosine"}
  assert [kw and dict(kw) for _, kw in short.schedule] == [
    ours,
    None,
    ours | {"mult": 0.1, "scale_with_batchsize": True},
  ]
  assert short.total_steps == 100
  assert not {"total_epochs", "resume"} & set(short)
  assert not short.evals
  assert config.total_epochs == 90


def test_dual_patchnorm_does_not_see_brightness_and_contrast(run):
  *_, found = run
  assert found["invariance"]["of"] == "end"
  for row in found["invariance"]["changes"]:
    assert row["tokens"] < 0.02
    assert row["same_prediction"] == 1
  assert found["invariance"]["another_image"]["tokens"] > 1


def test_patches_are_measured_with_pixels_from_minus_one_to_one(run):
  config, _, _, found = run
  other = ml_collections.ConfigDict(config.to_dict())
  other.input.pp = config.input.pp.replace(
    "value_range(-1, 1)", "vgg_value_range((90,), (50,))"
  )
  assert other.input.pp != config.input.pp
  again = diagnose.diagnose(other, None, steps=2, examples=40)
  for name, want in found["patches"].items():
    got = again["patches"][name]["effective_rank"]
    assert got == pytest.approx(want["effective_rank"], rel=1e-5)


def test_the_run_whose_start_is_gone(run):
  config, folder, *_ = run
  config = ml_collections.ConfigDict(config.to_dict() | {"model_init": "/gone"})
  with pytest.raises(FileNotFoundError, match=f"alone, as {folder}/params"):
    diagnose.diagnose(config, folder, steps=2, examples=8)


def test_what_the_head_sees_of_maps_are_all_tokens():
  def predict(variables, batch):
    image = batch["image"]
    out = {"stem": image, "pre_logits_2d": image**2, "pre_logits": 0 * image}
    return image, out

  image = jax.random.uniform(jax.random.key(0), (2, 4, 4, 3), minval=0.5)
  found = measures.invariance(predict, {}, {"image": image})
  [double] = [row for row in found["changes"] if row["contrast"] == 2]
  assert double["tokens"] == pytest.approx(1, rel=1e-5)
  assert double["representation"] == pytest.approx(3, rel=1e-5)
  assert double["same_prediction"] == 1
  change = np.linalg.norm(image[0] - image[1]) / np.linalg.norm(image)
  other = found["another_image"]
  assert other["tokens"] == pytest.approx(2**0.5 * change, rel=1e-5)


def test_a_model_that_tells_nothing_apart_is_said_to():
  other = {"tokens": 1.3, "representation": 0.05, "same_prediction": 1.0}
  found = {"invariance": {"of": "step 100", "another_image": other}}
  found["batch_size"] = 8
  same = r"the representation by 0\.05; 100% of the predictions stay\. So the"
  assert re.search(same, diagnose.in_comparison(found))
  other["same_prediction"] = 0.99
  assert diagnose.in_comparison(found).endswith("predictions stay.")
  found["batch_size"] = 1
  assert "no other" in diagnose.in_comparison(found)


def test_text_page_and_json(run):
  *_, found = run
  assert json.loads(json.dumps(found)) == found
  words = "\n".join(diagnose.texts(found))
  tables = diagnose.tables(found)
  rank = found["patches"]["LayerNorm"]["effective_rank"]
  assert tables[0].loc["LayerNorm", "effective rank"] == f"{rank:.1f}"
  first, last = (found["short_training"]["loss"][i] for i in (0, -1))
  loss = f"loss went from {first:.2f} to {last:.2f} (mean"  # a tenth is a step
  for part in ("digits:train", "stem_ln=dpn", "contrast", loss):
    assert part in words
  picture = page.picture(found)
  html = page.page("Diagnosis", diagnose.texts(found), tables, picture)
  shown = testing.Page(html)
  assert [tag for tag, _ in shown.tags].count("img") == 1
  assert [tag for tag, _ in shown.tags].count("table") == 3


def test_conditioning():
  rng = np.random.default_rng(0)
  images = rng.gamma(2, size=(6, 8, 12, 2)) + rng.normal(size=(6, 1, 1, 2))
  found = measures.conditioning([images[:4], images[4:]], (4, 4))

  def spectrum(x):
    patches = [
      x[n, i : i + 4, j : j + 4].ravel()
      for n in range(6)
      for i in (0, 4)
      for j in (0, 4, 8)
    ]
    return np.array(patches)

  plain = spectrum(images)
  mean, std = images.mean((0, 1, 2)), images.std((0, 1, 2))
  centred = plain - plain.mean(1, keepdims=True)
  for name, x in {
    "raw": plain,
    "channels standardized": spectrum((images - mean) / std),
    "LayerNorm": centred / np.sqrt(plain.var(1, keepdims=True) + 1e-6),
  }.items():
    energy = np.linalg.svd(x, compute_uv=False) ** 2
    np.testing.assert_allclose(
      found[name]["spectrum"], energy / energy.sum(), atol=1e-9
    )
    rank = np.exp(scipy.stats.entropy(energy))
    assert found[name]["effective_rank"] == pytest.approx(rank, rel=1e-6)
    assert found[name]["top_share"] == found[name]["spectrum"][0]


@pytest.mark.parametrize("options", [{}, {"posemb": "rpe"}, {"scan": True}])
def test_attention_and_norms(options):
  model = vit.Model(
    3, width=8, depth=2, mlp_dim=8, num_heads=2, patch_size=(4, 4), **options
  )
  image = jax.random.normal(jax.random.key(0), (2, 8, 8, 3))
  variables = model.init(jax.random.key(1), image)
  noise = lambda x: x + jax.random.normal(jax.random.key(2), x.shape)
  variables = jax.device_get(jax.tree.map(noise, variables))
  predict = lambda variables, batch: model.apply(variables, batch["image"])
  found = measures.signals(predict, variables, {"image": image})
  _, out = predict(variables, {"image": image})
  norms = np.linalg.norm(out["stem"], axis=-1)
  want = np.percentile(norms, measures.QUANTILES)
  np.testing.assert_allclose(found["token_norms"], want, rtol=1e-4)
  if options.get("posemb"):
    assert "position_norms" not in found
    return  # the bias is tested where it is added
  positions = np.linalg.norm(variables["params"]["pos_embedding"], axis=-1)
  want = np.percentile(positions, measures.QUANTILES)
  np.testing.assert_allclose(found["position_norms"], want, rtol=1e-4)

  blocks = variables["params"]["Transformer"]
  first = (
    jax.tree.map(lambda x: x[0], blocks["encoderblock"])
    if options
    else blocks["encoderblock_0"]
  )
  x = np.float64(out["with_posemb"])
  x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6)
  x = x * first["LayerNorm_0"]["scale"] + first["LayerNorm_0"]["bias"]
  attention = first["MultiHeadDotProductAttention_0"]
  q, k = (
    np.einsum("btw,whd->bhtd", x, attention[name]["kernel"])
    + np.float64(attention[name]["bias"])[:, None]
    for name in ("query", "key")
  )
  logits = q @ k.swapaxes(2, 3) / 2
  entropy = scipy.stats.entropy(scipy.special.softmax(logits, -1), axis=-1)
  want = {"attention_entropy": entropy.mean() / np.log(4)}
  want["largest_logit"] = np.abs(logits).max()
  for name, value in want.items():
    assert found[name][0] == pytest.approx(value, rel=1e-3), name


def test_a_file_without_data(tmp_path):
  """LN0's scale is known, and the kernel is of rank one."""
  path, params = weights.write_ours(tmp_path)
  scale = np.ones((3, 3, 3), np.float32)
  scale[0, 0], scale[1, 1] = 0.5, 0
  params["stem"]["ln0"] = {"scale": scale.ravel(), "bias": np.full(27, -0.5)}
  kernel = np.outer(np.arange(1, 28), np.arange(1, 9)).astype(np.float32)
  params["embedding"]["kernel"] = kernel.reshape(3, 3, 3, 8)
  files.save_params(path, params, metadata=weights.metadata(path))
  found, _, tables = diagnose.from_file(path, [])
  norm = found["norms"]["stem/ln0"]
  assert norm["scale"][2:] == [1, 1, 1]
  assert norm["near_zero"] == 3 / 27
  assert norm["bias"] == pytest.approx(0.5)
  for part in found["embedding"].values():
    assert part["effective_rank"] == pytest.approx(1, abs=1e-3)
  # In the centre, the corners and along the edges.
  assert re.search(r"red +0\.750 +0\.500 +1\.000", tables[1].to_string())
  assert "scale, by pixel" in learned.picture(found).caption
  with pytest.raises(ValueError, match="nknown model option"):
    diagnose.from_file(path, ["geul=exact"])


def test_what_looks_wrong(tmp_path):
  path, params = weights.write_ours(tmp_path, registers=3)
  params["stem"]["ln0"]["scale"][:20] = 0
  params["registers"][0, 2] = 2 * params["registers"][0, 0]
  params["pos_embedding"][0, 4] = 0
  block = params["Transformer"]["encoderblock_1"]
  block["MlpBlock_0"]["Dense_0"]["kernel"][:, 5] = 0
  attention = block["MultiHeadDotProductAttention_0"]
  attention["value"]["kernel"][:, 1] = 0
  files.save_params(path, params, metadata=weights.metadata(path))
  start = "Transformer/encoderblock_1"
  dead = "outputs do not depend on the input"
  assert sorted(learned.findings(convert.read(path))) == [
    f"{start}/MlpBlock_0/Dense_0/kernel: 1 of 12 {dead}.",
    f"{start}/MultiHeadDotProductAttention_0/value/kernel: 4 of 8 {dead}.",
    "pos_embedding: 1 of 9 rows are near 0: unused.",
    "registers: 1 pairs of rows are alike.",
    "stem/ln0/scale: 74% of the scales are near 0: collapsed.",
  ]
