r"""SigLIP: both towers from scratch, with the sigmoid loss.

  python -m trainers.train --workdir W --config configs/siglip.py:\
variant=B/16,stem_ln=dpn,data=NAME,vocab=/path/to/c4_en.model

Arguments: variant, stem_ln, data, data_dir, split, caption, vocab, vocab_size,
tokens, prompts, chunks (as configs/lit.py has them), res, batch, steps, lr, wd,
seed, runlocal.

Expected: no number was measured here. The recipe follows arXiv 2303.15343 and
the models that big_vision publishes with it: attention pooling of the image,
the last token of the text and a head on that alone, initial temperature 10 and
bias -10, 64 tokens of c4_en. The optimizer is a guess: the one of
configs/lit.py, with beta2 capped at 0.95.
"""

from dpn.configs import common, lit


@common.recipe(
  variant="B/16",
  stem_ln="dpn",
  **lit.DATA,
  **{**lit.TEXT, "tokens": 64},
  res=224,
  batch=32_768,
  steps=100_000,
  lr=0.0,
  wd=1e-4,
)
def get_config(arg):
  fields = lit.contrastive(arg, f"resize({arg.res})|{common.PIXELS}", arg.batch)
  crop = f"resize({arg.res * 8 // 7})|central_crop({arg.res})"
  fields["evals"]["zeroshot"]["pp_img"] = f"decode|{crop}|{common.PIXELS}"
  resize = f"decode|resize({arg.res})|{common.PIXELS}"
  fields["evals"]["retrieval"]["pp_img"] = resize
  size = arg.variant.partition("/")[0]
  image = common.vit(arg.stem_ln, variant=arg.variant, pool_type="map")
  return {
    **fields,
    "loss": "sigmoid",
    "total_steps": arg.steps,
    "model": {
      "image": image["model"],
      "text": {"variant": size, "vocab_size": arg.vocab_size},
      "out_dim": (None, common.choose("size of variant", size, lit.DIMS)),
      "temperature_init": 10.0,
      "bias_init": -10.0,
    },
    "optax": {"beta2_cap": 0.95},
    "wd": arg.wd,
    "schedule": {"decay_type": "cosine", "warmup_steps": 10_000},
    "table": common.table(
      "SigLIP" + f", {arg.prompts}" * (arg.prompts != "name"),
      *(arg.variant, arg.stem_ln, "zeroshot/imagenet_prec@1"),
    ),
  }
