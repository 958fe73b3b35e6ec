"""Every config builds, trains two steps and evaluates."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpn.tasks
from dpn import metrics, stems, trees
from dpn.configs import camvid, norm_zoo
from dpn.configs.conftest import CONFIGS, module, quick_first
from dpn.input_pipeline import conftest as testing
from dpn.input_pipeline import pipeline, pp
from dpn.scripts import fake_data
from dpn.scripts.results import arms
from dpn.trainers import config_keys, loop

pytestmark = pytest.mark.usefixtures("tfds", "compile_fast")
# README's commands train two others, digits and images.
QUICK = ("augreg_i1k", "camvid", "fewshot")
# Arguments that are numbers or names of files, or that the sweeps, other tests
# or other arguments go through.
PLAIN = {
  *("seed", "runlocal", "lr", "wd", "dropout", "mixup", "epochs", "batch"),
  *("steps", "init", "data", "data_dir", "split", "classes", "label"),
  *("pretrain_steps", "caption", "vocab", "vocab_size", "tokens"),
  *("percent", "patch", "width", "depth", "embedded", "setup"),
  *("embedding", "head_scale", "mlp_ln", "block_ln_kw", "posemb_join_kw"),
}
# For every other argument, values that make another model or other inputs.
VALUES = {
  "aug": ["none", "light1", "medium2", "strong2"],
  "clip": ["none", "layer"],
  "block": ["normformer", "sub_ln"],
  "block_ln": ["sub_ln"],
  "chunks": ["2"],
  "cls_row": ["True"],
  "corruptions": ["True"],
  "crop": ["224"],
  "draw": ["seed"],
  "datasets": ["imagenet", "small"],
  "dpn": ["True"],
  "ema": ["True"],
  "erasing": ["0"],
  "eval": ["multi"],
  "final_norm": ["True"],
  "fraction": ["1/16", "1/2"],
  "loss": ["sigmoid"],
  "method": ["dpn+patch_stats", "none_scaled", "none_standardized"],
  "minival": ["train"],
  "mlp": ["pre+post"],
  "on_device": ["True"],
  "pixels": ["standardized"],
  "optimizer": ["sgd", "adafactor"],
  "late_cls": ["False"],
  "norm": ["dtn"],
  "norm_kw": [".eps=1e-4"],
  "pool": ["gap", "map"],
  "posemb": ["rpe"],
  "posemb_join": ["lape", "shared", "unshared"],
  "post": ["stream,sa=post"],
  "pp": ["vtab", "crop_flip"],
  "prompts": ["clip_best"],
  "randaug": ["0", "10"],
  "recipe": ["deit"],
  "rep_size": ["True"],
  "res": ["224", "384"],
  "sa": ["post"],
  "side": ["360"],
  "stage": ["tower"],
  "stoch_depth": ["True"],
  "stem": ["patch_stats", "tract"],
  "stem_ln": ["none", "post_posemb"],
  "task": ["DTD"],  # the others: vtab_test.py
  "test": ["True"],
  "text": ["bert"],
}
# Of single configs; variants of the others are all shrunk to one.
OWN_VALUES = {
  ("norm_zoo", "method"): [*norm_zoo.METHODS],
  ("norm_zoo", "optimizer"): ["muon"],
  ("norm_zoo", "test"): ["True"],
  ("studies.camvid_rates", "method"): [
    *("dpn+patch_mean", "dpn+patch_stats_gain1", "dpn+patch_stats_channels"),
    *("none_standardized", "tract"),
  ],
  ("studies.when_dpn_helps", "aug"): ["none", "jitter"],
  ("deit_i1k", "variant"): ["S/16", "B/16", "vit5-S/16"],
  ("dtn_i1k", "variant"): ["Ti_star", "B_star"],
  ("lape_cifar", "variant"): ["lite-7/4", "cvt-7/4", "cct-7/3x1"],
  ("lape_deit", "variant"): ["Ti/16", "S/16", "B/16"],
}


@pytest.fixture(scope="module")
def photos(tfds):
  return testing.class_folders(f"{tfds}/photos")


def _shrunk(name, photos, arg="runlocal"):
  """Returns a config whose model, if it is one of the large ones, is tiny."""
  needed = f"data={photos}," if name == "images" else ""
  if name == "studies.photos":
    needed = f"data_dir={photos.removesuffix('/photos')},"
  config = module(name).get_config(needed + arg)
  variant = config.model.get("variant", "lite")
  if variant.startswith("vit5"):
    config.model.update(width=32, depth=1, mlp_dim=64, num_heads=2)
  elif variant[0] in "TSBL" and variant[-2:] in ("16", "32"):
    config.model.variant = "mu/32"
    if "cls_blocks" in config.model:
      config.model.depth = config.model.cls_blocks + 1
  if config.model.get("text", {}).get("variant"):  # two towers
    config.model.image.variant, config.model.text.variant = "mu/32", "mu"
    with config.ignore_type():
      config.model.out_dim = 32
  return config


@pytest.mark.parametrize("name", quick_first(CONFIGS, QUICK))
def test_a_config_trains_and_evaluates(name, photos, tmp_path, monkeypatch):
  # Seconds to compile, and the same for every config.
  monkeypatch.setattr(trees, "checksum", lambda tree: 0)
  config = _shrunk(name, photos)
  loop.train(config, str(tmp_path))
  rows = metrics.read(str(tmp_path / "metrics.jsonl"))
  steps = [1, 2] if config.total_steps else [0]
  assert [row["step"] for row in rows] == steps
  if config.total_steps:
    assert {"loss", "lr", "l2_grads"} <= rows[0].keys()
  evaluated = {key.split("/")[0] for key in rows[-1] if "/" in key}
  norms = {key for key in evaluated if key.startswith("grad_norm")}
  assert evaluated - norms == set(config.evals)
  assert (tmp_path / "done.json").exists()
  assert config.table.runlocal
  if "test" not in config.table.metric:  # which selection adds
    assert config.table.metric in rows[-1]


def _check(config):
  """Traces a step's loss, and runs the preprocessing of training."""
  config_keys.check(config)
  task = dpn.tasks.make(config)
  batch = {
    key: jnp.zeros((2, *shape[1:]), dtype)
    for key, (shape, dtype) in fake_data.spec(config).items()
  }
  variables = jax.eval_shape(task.init, jax.random.key(0), batch)
  loss = lambda v: task.measure(v, batch, rng=jax.random.key(0))[0]["loss"]
  assert jax.eval_shape(loss, variables).shape == (2,)
  for section in config.evals.values():
    for key in ("pp_fn", "pp_train", "pp_eval"):
      pp.make(section.get(key, ""))
  return task


@pytest.mark.parametrize("name", CONFIGS)
def test_each_value_of_an_argument(name, photos):
  for argument in module(name).get_config.arguments:
    # A new argument has to be listed in one of these.
    values = OWN_VALUES.get((name, argument), VALUES.get(argument, []))
    assert argument in {*VALUES, *PLAIN, "variant"}
    for value in values:
      item = value if value.startswith(".") else f"={value}"
      _check(_shrunk(name, photos, f"{argument}{item},runlocal"))


@pytest.mark.parametrize("word", stems.WORDS)
@pytest.mark.parametrize(
  "name", [n for n in CONFIGS if "stem_ln" in module(n).get_config.arguments]
)
def test_a_word_for_stem_ln_chooses_the_stem(name, photos, word):
  config = _shrunk(name, photos, f"stem_ln={word},runlocal").to_dict()
  model = arms.image_model(config)
  assert stems.WORDS[word].items() <= model.items()


def test_a_word_for_stem_ln_beside_its_stem():
  get = module("studies.tract_cifar10").get_config
  assert get("stem_ln=tract,stem=tract") == get("stem_ln=tract")


@pytest.mark.parametrize("name", CONFIGS)
def test_a_config_says_how_to_run_it_and_what_to_expect(name):
  text = module(name).__doc__
  command = "evaluate" if name == "fewshot" else "trainers.train"
  assert command in text
  assert f"configs/{name.replace('.', '/')}.py" in text
  assert "--config" in text
  assert "Expected" in text
  if hasattr(module(name), "sweep"):
    assert "python -m scripts.sweep" in text
    assert "As a sweep" in " ".join(text.split())


REFUSED = [
  ("ade20k", "", "ade20k needs the model.*append init=/path/to/"),
  ("finetune_i1k", "", "finetune_i1k needs the model.*append init=/path/to/"),
  ("vtab", "", "vtab needs the model.*append init=/path/to/"),
  ("vtab", "task=DTT,init=a", r"Unknown task 'DTT'.*'DTD'"),
  ("vtab", "pp=crop,init=a", r"Unknown pp 'crop'.*'crop_flip'"),
  ("jft", "variant=L/16", "append data=NAME,classes=N"),
  ("images", "data=/none", "/none', which does not exist: append"),
  ("augreg_i1k", "aug=lite1", r"Unknown aug 'lite1'.*mean 'light1'"),
  ("augreg_i1k", "variant=B/8", r"Unknown variant 'B/8'.*Known: B/16"),
  ("ln_placement", "block=sub_ln,sa=post", "leave out sa, mlp, post"),
  ("ln_placement", "block=sub_ln,head_scale=none", "=none needs the block"),
  ("mini", "block=sub_ln,sa=post", "leave out sa, mlp, post"),
  ("mini_lit", "init=/a,embedded=/b", "is instead of a tower: leave out init"),
  ("studies.tract_cifar10", "stem_ln=tract,stem=patch_stats", "got stem=patch"),
  ("studies.when_dpn_helps", "percent=0", "must be 1 to 90, got 0"),
  ("studies.when_dpn_helps", "percent=91", "must be 1 to 90, got 91"),
  (
    *("studies.when_dpn_helps", "pixels=standardized,on_device=True"),
    r"range, .* got pixels=standard",
  ),
]


@pytest.mark.parametrize(("name", "arg", "message"), REFUSED)
def test_refused(name, arg, message):
  with pytest.raises(ValueError, match=message):
    module(name).get_config(arg)


def test_jft_on_other_data():
  config = module("jft").get_config("data=mine,classes=7,label=class")
  assert (config.input.data.name, config.num_classes) == ("mine", 7)
  assert 'onehot(7, key="class"' in config.input.pp
  assert "mixup" not in config
  assert "randaug" not in config.input.pp


def test_pixels_of_a_plain_vit_on_cifar10():
  get = module("studies.when_dpn_helps").get_config
  config = get("stem_ln=none,pixels=standardized,corruptions=True")
  assert config.table.arm == "none_standardized"
  tract = get("stem_ln=tract,pixels=standardized")
  assert tract.table.arm == "tract_standardized"
  steps = [config.input.pp, *(e.pp_fn for e in config.evals.values())]
  for step in steps:
    assert "|vgg_value_range((125.307, 122.961, 113.8575), (62.98" in step
    assert "|value_range" not in step


def test_what_pretraining_leaves_open():
  get = lambda name, arg: module(name).get_config(arg)
  i21k = get("augreg_i21k", "B/16")
  assert (i21k.model.pool_type, i21k.model.dropout) == ("gap", 0.0)
  assert set(i21k.evals) == {"train", "val", "test", "fewshot"}
  literal = get("augreg_i21k", "setup=i1k,split=train")
  assert (literal.model.pool_type, literal.model.dropout) == ("tok", 0.1)
  assert literal.model == get("augreg_i1k", "B/16").model
  # What transfers load has no layer before the head, either.
  assert not get("augreg_i1k", "S/32").model.rep_size
  assert not get("vtab", "variant=S/32,init=/a").model.rep_size
  assert not get("finetune_i1k", "variant=S/32,init=/a").model.rep_size
  assert "randaug(2,15)" in literal.input.pp
  assert set(literal.evals) == {"fewshot"}
  jft = get("jft", "data=mine,classes=7")
  assert (jft.optax_name, jft.optax.to_dict(), jft.lr, jft.wd) == (
    *("big_vision.scale_by_adafactor", {}),
    *(8e-4, pytest.approx(2.4e-5)),
  )
  assert jft.schedule.cooldown_steps == 50_000
  assert (jft.model.pool_type, jft.model.rep_size) == ("tok", True)
  augreg = get("jft", "data=mine,classes=7,setup=augreg,pool=map")
  assert (augreg.optax_name, augreg.lr) == ("scale_by_adam", 1e-3)
  assert (augreg.model.pool_type, augreg.model.rep_size) == ("map", False)
  recipes = [c.table.recipe for c in (i21k, literal, jft, augreg)]
  assert recipes == ["I21k", "I21k, setup i1k", "JFT", "JFT, augreg, map"]


def test_pairs_are_trained_as_by_big_vision():
  """SigLIP_demo.ipynb; lit_coco.py and common.py of image_text at 4cf5c02."""
  get = lambda name, arg: module(name).get_config(arg)
  siglip = get("siglip", "vocab=bytes")
  assert siglip.model.image.pool_type == "map"
  assert siglip.model.text.to_dict() == {"variant": "B", "vocab_size": 32_000}
  assert siglip.model.out_dim == (None, 768)
  assert "crop" not in siglip.evals.retrieval.pp_img
  assert "crop" in siglip.evals.zeroshot.pp_img
  coco = get("lit", "setup=coco,text=bert,init=x,vocab=vocab.txt")
  assert coco.optax_name == "scale_by_adam"
  lit = get("lit", "pool=map,prompts=clip_best,init=x,vocab=bytes")
  usual = get("lit", "init=x,vocab=bytes")
  best = get("siglip", "prompts=clip_best,vocab=bytes")
  recipes = [c.table.recipe for c in (usual, coco, lit, siglip, best)]
  assert recipes == [
    *("LiT", "LiT, coco, bert", "LiT, map, clip_best"),
    *("SigLIP", "SigLIP, clip_best"),
  ]


@pytest.mark.parametrize("form", ["pairs", "tfds"])
def test_camvid_from_files_and_from_tfds(tmp_path, form):
  ids = np.arange(64).reshape(8, 8) % 12
  image, label = testing.jpeg(np.random.default_rng(0), 8, 8), testing.png(ids)
  if form == "pairs":
    for folder, name, file in (
      ("images", "a.jpg", image),
      ("annotations", "a.png", label),
    ):
      path = tmp_path / folder / "test" / name
      path.parent.mkdir(parents=True)
      path.write_bytes(file)
    arg = f"data=pairs:{tmp_path}"
  else:
    examples = {"test": [{"image": image, "label": label}]}
    features = {"image": "jpeg", "label": "png"}
    testing.write_tfds(str(tmp_path), "camvid", examples, features)
    arg = f"data_dir={tmp_path}"
  section = camvid.get_config(f"{arg},side=8,crop=8").evals.test
  [batch] = pipeline.evaluation(section.data, section.pp_fn, 1)
  want = np.where(ids == camvid.VOID, 255, ids)
  np.testing.assert_array_equal(batch["labels"][0], want)
