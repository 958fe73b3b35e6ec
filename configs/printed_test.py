"""Configs as the paper (arXiv 2302.01327) prints them, but for the imports.

Written in big_vision's way from Appendix C, D and E.
"""

import jax
import numpy as np
import pytest

from dpn import schedules
from input_pipeline import pp, testing
from trainers import build

AUGREG = """
import configs.common as bvcc
from configs.common import get_fewshot_lsr
import ml_collections as mlc

def get_config(arg=None):
  arg = bvcc.parse_arg(arg, variant='B/16', runlocal=False, aug='')
  config = mlc.ConfigDict()
  config.pp_modules = ['ops_general', 'ops_image']
  config.init_head_bias = -6.9
  aug = arg.aug or {
      'Ti/16': 'light1', 'S/32': 'medium1', 'S/16': 'medium2',
      'B/32': 'medium2', 'B/16': 'medium2', 'L/16': 'medium2',
  }[arg.variant]

  config.input = dict()
  config.input.data = dict(name='imagenet2012', split='train[:99%]')
  config.input.batch_size = 4096
  config.input.cache_raw = True
  config.input.shuffle_buffer_size = 250_000
  tail = ('|value_range(-1, 1)'
          '|onehot(1000, key="{lbl}", key_result="labels")'
          '|keep("image", "labels")')
  config.input.pp = (
      'decode_jpeg_and_inception_crop(224)|flip_lr|' +
      bvcc.RANDAUG_DEF[aug] + tail.format(lbl='label'))
  pp_eval = 'decode|resize_small(256)|central_crop(224)' + tail
  config.input.prefetch = 8
  config.prefetch_to_device = 4

  config.num_classes = 1000
  config.loss = 'sigmoid_xent'
  config.total_epochs = 300
  config.log_training_steps = 50
  config.ckpt_steps = 1000

  config.model_name = 'vit'
  config.model = dict(
      variant=arg.variant, rep_size=True, pool_type='tok', dropout=0.1,
      stoch_depth=0.1, stem_ln='dpn')

  config.grad_clip_norm = 1.0
  config.optax_name = 'scale_by_adam'
  config.optax = dict(mu_dtype='bfloat16')
  config.lr = 0.001
  config.wd = 0.0001
  config.seed = 0
  config.schedule = dict(warmup_steps=10_000, decay_type='cosine')
  config.mixup = bvcc.MIXUP_DEF[aug]

  def get_eval(split, dataset='imagenet2012'):
    return dict(
        type='classification',
        data=dict(name=dataset, split=split),
        pp_fn=pp_eval.format(lbl='label'),
        loss_name=config.loss,
        log_steps=2500,
        cache_final=not arg.runlocal)
  config.evals = {}
  config.evals.train = get_eval('train[:2%]')
  config.evals.minival = get_eval('train[99%:]')
  config.evals.val = get_eval('validation')
  config.evals.fewshot = get_fewshot_lsr(runlocal=True)
  config.evals.fewshot.log_steps = 10_000
  return config
"""

FINETUNE = """
import configs.common as bvcc
import ml_collections as mlc

def get_config(arg=None):
  arg = bvcc.parse_arg(arg, runlocal=False)
  config = mlc.ConfigDict()
  tail = ('|value_range(-1, 1)'
          '|onehot({classes}, key="label", key_result="labels")'
          '|keep("image", "labels")').format(classes=CLASSES)
  pp_eval = 'decode|resize_small(418)|central_crop(384)' + tail

  config.input = mlc.ConfigDict()
  config.input.data = mlc.ConfigDict()
  config.input.data.name = DATASET
  config.input.data.split = TRAIN
  config.input.batch_size = 512
  config.input.cache_raw = False
  config.input.shuffle_buffer_size = 50_000
  config.input.pp = (
      'decode_jpeg_and_inception_crop(384)|flip_lr' + tail)
  config.prefetch_to_device = 2

  config.num_classes = CLASSES
  config.loss = 'sigmoid_xent'
  config.total_steps = STEPS
  config.log_training_steps = 10
  config.log_eval_steps = 100
  config.ckpt_steps = 1000

  config.model_name = 'vit'
  config.model_init = 'low_res/path.npz'
  config.model = dict(
      variant='B/32', pool_type='tok', rep_size=True, stem_ln='dpn')
  config.model_load = dict(dont_load=['head/kernel', 'head/bias'])

  config.optax_name = 'big_vision.momentum_hp'
  config.grad_clip_norm = 1.0
  config.wd = None
  config.lr = LR
  config.schedule = mlc.ConfigDict()
  config.schedule.warmup_steps = WARMUP
  config.schedule.decay_type = 'cosine'

  config.evals = mlc.ConfigDict()
  config.evals.val = mlc.ConfigDict()
  config.evals.val.type = 'classification'
  config.evals.val.data = dict(name=DATASET, split=VALIDATION)
  config.evals.val.pp_fn = pp_eval
  config.evals.val.loss_name = config.loss
  return config
"""
APPENDIX_D = {
  "DATASET": "imagenet2012",
  "TRAIN": "train[:99%]",
  "VALIDATION": "train[99%:]",
  "CLASSES": 1000,
  "STEPS": 5000,
  "LR": 0.03,
  "WARMUP": 500,
}
APPENDIX_E = {
  "DATASET": "cifar100",
  "TRAIN": "train[:800]",
  "VALIDATION": "train[800:1000]",
  "CLASSES": 100,
  "STEPS": 2500,
  "LR": 3e-4,
  "WARMUP": 200,
}


@pytest.fixture(scope="module", autouse=True)
def _data(tmp_path_factory):
  """Data sets of made-up images, where TFDS looks for them."""
  folder = str(tmp_path_factory.mktemp("tfds"))
  testing.imagenet2012(folder, train=100, validation=8)
  image = testing.jpeg(np.random.default_rng(0), 32, 32)
  examples = [{"image": image, "label": i % 37} for i in range(1000)]
  for name, classes in (("cifar100", 100), ("oxford_iiit_pet", 37)):
    splits = {"train": examples, "test": examples[:8]}
    features = {"image": "jpeg", "label": classes}
    testing.write_tfds(folder, name, splits, features)
  with pytest.MonkeyPatch.context() as patch:
    patch.setenv("TFDS_DATA_DIR", folder)
    yield


def _config(text, arg=None, **constants):
  module = dict(constants)
  exec(compile(text, "printed", "exec"), module)
  return module["get_config"](arg)


def _size(tree):
  return sum(x.size for x in jax.tree.leaves(tree))


def test_appendix_c():
  config = _config(AUGREG)
  # 99% of 1,281,167 images, 300 times: the paper's 93k steps.
  sizes = {"batch_size": config.input.batch_size, "data_size": 1_268_355}
  assert schedules.steps("total", config, **sizes) == 92_897
  del config.total_epochs  # too short with the images made up here
  config.total_steps = 92_897
  run = build.from_config(config)
  assert (run.log_steps, run.ckpt_steps) == (50, 1000)
  every = {e.name: e.every_steps for e in run.evaluators}
  evals = {"train": 2500, "minival": 2500, "val": 2500, "fewshot": 10_000}
  assert every == evals
  # A plain B/16 with 1,000 classes has 86,567,656, of which the class token's
  # position makes 768; then pre_logits and two LayerNorms of 768 numbers.
  params = 86_567_656 - 768 + (768 * 768 + 768) + 4 * 768
  assert _size(run.step.shapes.params) == params
  moments = run.step.shapes.opt_state
  dtypes = {x.dtype.name for x in jax.tree.leaves(moments) if x.ndim > 0}
  assert dtypes == {"bfloat16", "float32"}
  assert len(run.notes) == 2  # the buffer, cache_raw


def test_appendix_c_without_augmentation():
  """An op that is not there leaves two bars side by side."""
  config = _config(AUGREG, "aug=none")
  assert "flip_lr||value_range" in config.input.pp
  example = {
    "image": testing.jpeg(np.random.default_rng(1), 300, 300),
    "label": 7,
  }
  got, want = (
    pp.make(text)(dict(example), np.random.default_rng(2))
    for text in (config.input.pp, config.input.pp.replace("||", "|"))
  )
  np.testing.assert_array_equal(got["image"], want["image"])
  assert got["image"].shape == (224, 224, 3)
  assert np.flatnonzero(got["labels"]).tolist() == [7]


@pytest.mark.parametrize("constants", [APPENDIX_D, APPENDIX_E])
def test_appendix_d_and_e(constants):
  run = build.from_config(_config(FINETUNE, **constants))
  assert run.total_steps == constants["STEPS"]
  assert run.log_steps == 10
  assert [e.every_steps for e in run.evaluators] == [100]
  num_train = {"imagenet2012": 99, "cifar100": 800}[constants["DATASET"]]
  assert run.data.num_examples == num_train
  assert run.data.spec["image"][0] == (512, 384, 384, 3)
  [schedule] = run.step.schedule_fns
  warmup, total = constants["WARMUP"], constants["STEPS"]
  assert float(schedule(warmup)) == pytest.approx(1)
  assert float(schedule(warmup // 2)) == pytest.approx(0.5, abs=1e-3)
  assert float(schedule((warmup + total) // 2)) == pytest.approx(0.5, abs=1e-3)
  # Momentum in half precision, and nothing else.
  sizes = {
    x.dtype.name: x.size
    for x in jax.tree.leaves(run.step.shapes.opt_state)
    if x.ndim > 0
  }
  assert set(sizes) == {"bfloat16"}
