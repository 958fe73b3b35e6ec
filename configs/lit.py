r"""LiT: a text tower learns to match a locked image tower (Table 4).

  python -m trainers.train --workdir W --config configs/lit.py:\
variant=B/32,stem_ln=dpn,init=/path/to/tower,data=NAME,vocab=/path/to/c4_en.model
  python -m scripts.sweep --out runs/table4 --config configs/lit.py:\
data=NAME,vocab=/path/to/c4_en.model,init=runs/table2_left/\
{stem_ln}_{variant}_{pretrain_steps}-s0

Arguments: variant, stem_ln, init (the image tower: a run of configs/jft.py or
a file), pretrain_steps (what it was trained for, to name the table's row), pool
(of the tower), setup (paper or coco), data and data_dir (a source with
captions), split, caption (their key), text (tower: B; or bert, which is
BERT-base, with vocab=/path/to/vocab.txt,vocab_size=30522), vocab (a
vocabulary, see input_pipeline/text/tokenizers.py), vocab_size, tokens, prompts
(name, clip_best or clip_paper), lr, wd (below 0: the setup's), chunks (of the
loss), seed, runlocal. As a sweep: variants, stems, pretrain_steps, init, data,
data_dir, split, caption, vocab, vocab_size, pool, prompts, seeds (3).

Expected (arXiv 2302.01327, Table 4), zero-shot top-1 on ImageNet in percent:

            220k steps      1.1M steps
  B/32      61.9 → 63.0     67.4 → 68.0
  L/16      75.0 → 75.4     78.7 → 78.7

The paper gives 55,000 steps of 16,384 pairs, a locked image tower, a text tower
from scratch, and class names without prompts; the pairs are not public. All
else is a guess, after the code nearest to it, big_vision's for LiT (arXiv
2111.07991) and for CLIPPO: Adafactor, lr 0.001, wd 0.0001, warmup of 10,000
steps and cosine, clipping at 1, initial temperature 10, 16 tokens of c4_en with
a sticky end, a text tower of size B that is pooled at its last token, images
resized to 224 pixels and not augmented.

setup=coco is what big_vision trained on COCO when LiT was published, 5,000
steps of 4,096 pairs. Its text tower, text=bert, is trained with Adam and starts
from BERT's weights, which cannot be read here, so no number is expected. Hours:
901M pairs through a B/32 and a text tower of size B; not run.
"""

from dpn.configs import common, jft

DIMS = {"B": 768, "L": 1024}
SETUPS = {
  "paper": {
    **{"batch_size": 16_384, "total_steps": 55_000, "warmup_steps": 10_000},
    **{"wd": 1e-4, "aug": ""},
  },
  "coco": {
    **{"batch_size": 4096, "total_steps": 5000, "warmup_steps": 150},
    **{"wd": 0.01, "aug": "flip_lr|randaug(2,10)|"},
  },
}
TOWERS = {
  "B": {"text_model": "text", "text": {"variant": "B"}},
  "bert": {"text_model": "bert", "text": {"config": "base"}},
}
DATA = {
  "data": "coco_captions",
  "data_dir": "",
  "split": "train",
  "caption": "captions/text",
  "vocab": "",
  "vocab_size": 32_000,
}
TEXT = {"tokens": 16, "prompts": "name", "chunks": 1}


@common.recipe(
  variant="B/32",
  stem_ln="dpn",
  init="",
  pretrain_steps="220000",
  pool="tok",
  setup="paper",
  text="B",
  **DATA,
  **TEXT,
  lr=0.0,
  wd=-1.0,
)
def get_config(arg):
  common.need_init("lit", arg)
  setup = common.choose("setup", arg.setup, SETUPS)
  dim = common.choose("size of variant", arg.variant.partition("/")[0], DIMS)
  text = common.choose("text", arg.text, TOWERS)
  tower = jft.get_config(
    variant=arg.variant,
    stem_ln=arg.stem_ln,
    pool=arg.pool,
    data="any",
    classes=2,
  )
  fields = contrastive(
    arg, f"resize(224)|{setup['aug']}{common.PIXELS}", setup["batch_size"]
  )
  decay = {"decay_type": "cosine", "warmup_steps": setup["warmup_steps"]}
  locked = common.locked_image_tower(arg.init, decay)
  if not arg.init:  # runlocal
    locked = {"schedule": locked["schedule"]}
  usual = {"setup": "paper", "pool": "tok", "text": "B", "prompts": "name"}
  others = [arg[key] for key, value in usual.items() if arg[key] != value]
  return {
    **fields,
    "total_steps": setup["total_steps"],
    "model": {
      **text,
      "text": {**text["text"], "vocab_size": arg.vocab_size},
      "image": tower.model,
      "out_dim": (None, dim),
      "temperature_init": 10.0,
    },
    **locked,
    **({"optax_name": "scale_by_adam"} if arg.text == "bert" else {}),
    "wd": setup["wd"] if arg.wd < 0 else arg.wd,
    "table": common.table(
      ", ".join(["LiT", *others]),
      *(arg.variant, arg.stem_ln, "zeroshot/imagenet_prec@1"),
      pretrain_steps=arg.pretrain_steps,
    ),
  }


def contrastive(arg, pp_image: str, batch_size: int) -> dict:
  """Returns what LiT and SigLIP share: data, optimizer, evaluators.

  `arg` has the arguments of `DATA` and `TEXT`, and `lr`; `pp_image`
  preprocesses training images, without decoding them.
  """
  if not arg.vocab and not arg.runlocal:
    raise ValueError(
      "A vocabulary is needed: append vocab=/path/to/sentencepiece.model (or "
      "vocab.txt of BERT, or bytes) to the config's arguments."
    )
  vocab = arg.vocab or "bytes"
  # A TFDS folder that has COCO has the evaluators' data, too.
  tfds_dir = arg.data_dir if arg.data == DATA["data"] else ""
  ends = 'eos="sticky", pad_value="<eos>"'
  tokenize = f'tokenize({arg.tokens}, {ends}, model="{vocab}")'
  if arg.get("text") == "bert":
    tokenize = f'bert_tokenize({arg.tokens}, "{vocab}")'
  return {
    "task": "contrastive",
    "loss_chunks": arg.chunks,
    "input": {
      "data": common.source(arg.data, arg.split, arg.data_dir),
      "batch_size": batch_size,
      "pp": f'decode|{pp_image}|flatten|choice(inkey="{arg.caption}", '
      f'outkey="text")|{tokenize}|keep("image", "text")',
    },
    "log_training_steps": 50,
    "ckpt_steps": 1000,
    "optax_name": "big_vision.scale_by_adafactor",
    "grad_clip_norm": 1.0,
    "lr": arg.lr or 1e-3,
    "evals": {
      "zeroshot": {
        "type": "zeroshot",
        "datasets": {"imagenet": ("imagenet2012", "validation")},
        "data_dir": tfds_dir or None,
        "class_names": {"imagenet": "imagenet"},
        "templates": arg.prompts,
        "pp_img": f"decode|resize(256)|central_crop(224)|{common.PIXELS}",
        "pp_txt": tokenize,
        "log_steps": 5000,
      },
      "retrieval": {
        "type": "retrieval",
        "data": common.source("coco_captions", "test", tfds_dir),
        "text_key": "captions/text",
        "pp_img": f"decode|resize(224)|{common.PIXELS}",
        "pp_txt": tokenize,
        "log_steps": 5000,
      },
    },
  }


sweep = common.sweep(
  "{stem_ln}_{variant}_{pretrain_steps}",
  variants=("B/32", "L/16"),
  stems=("none", "dpn"),
  pretrain_steps=("220000", "1100000"),
  init="",
  **DATA,
  pool="tok",
  prompts="name",
  seeds=3,
)
