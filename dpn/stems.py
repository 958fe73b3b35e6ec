"""Words for `stem_ln`, in configs and models, that also choose the `stem`."""

WORDS = {
  # Dual PatchNorm with each patch's mean and deviation: docs/patch_stats.md.
  "patch_stats": {"stem_ln": "dpn", "stem": "patch_stats"},
  "tract": {"stem_ln": "none", "stem": "tract"},  # arXiv 2410.23970
}
