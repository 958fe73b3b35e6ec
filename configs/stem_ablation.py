r"""Which part of Dual PatchNorm matters, on ImageNet-1k with AugReg's recipe.

Table 6 of arXiv 2302.01327 (Dual PatchNorm), and its Appendix A: whitened
patches, alone and followed by LayerNorm, with which the paper began.

  python -m trainers.train --workdir W \
    --config configs/stem_ablation.py:stem_ln=pre,variant=B/32
  python -m scripts.sweep --config configs/stem_ablation.py --out runs/table6

Arguments: variant (B/16, S/16, B/32, S/32, Ti/16), stem_ln (dpn, none, pre,
post, post_posemb, only_learnable, rmsnorm, no_learnable, whiten, whiten_ln),
cls_row, seed, runlocal. As a sweep: variants, stems, seeds (3, the paper's
least on ImageNet-1k), cls_row.

Expected top-1 relative to dpn, if that is what the table's "accuracy gains" are
over (B/16, S/16, B/32, S/32, Ti/16): pre -0.1 0.0 -2.6 -0.2 -0.3; post 0.0 -0.2
-0.5 -0.7 -1.1; post_posemb 0.0 -0.1 -0.4 -0.9 -1.1; only_learnable -0.8 -0.9
-1.2 -1.6 -1.6; rmsnorm 0.0 -0.1 -0.4 -0.5 -1.7; no_learnable -0.5 0.0 -0.2 -0.1
-0.1. Appendix A says that LayerNorm is sufficient without whitening, and that
whitening on its own could degrade performance. Cost: as configs/augreg_i1k.py,
so 106 hours at 1,000 images per second, for each of 50 arms and each seed.

Unknown: how patches were whitened; here by ZCA, fitted to the first 10,000
images of training before the first step (dpn/models/whitening.py). Unknown,
too: where post_posemb leaves the class token. Here LayerNorm is over the
patches' tokens, with their positions, and the class token joins afterwards, as
in Appendix C's code base; with cls_row it has its own position and is in the
LayerNorm, as in configs/deit_i1k.py and in CLIP, which the paper cites there.
"""

from dpn.configs import augreg_i1k, common

VARIANTS = ("B/16", "S/16", "B/32", "S/32", "Ti/16")
STEMS = (
  *("dpn", "none", "pre", "post", "post_posemb"),
  *("only_learnable", "rmsnorm", "no_learnable"),
  *("whiten", "whiten_ln"),  # Appendix A
)


@common.recipe(stem_ln="dpn", variant="B/16", cls_row=False)
def get_config(arg):
  config = augreg_i1k.get_config(variant=arg.variant, stem_ln=arg.stem_ln)
  if arg.cls_row:
    config.model.posemb_join_kw = {"cls": True}
    config.table.recipe = "AugReg, class token with a position"
  return config


sweep = common.sweep(
  "{stem_ln}_{variant}", variants=VARIANTS, stems=STEMS, seeds=3, cls_row=False
)
