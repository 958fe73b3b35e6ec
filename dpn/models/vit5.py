"""ViT-5 (arXiv 2602.08071): a Vision Transformer with what 2020 to 2025 added.

`vit5-S/16` is the authors' `vit5_small`, whose file loads once it is saved as
safetensors. Published on ImageNet at 224 pixels: S 82.2, B 84.2, L 84.9.
"""

_SHARED = {
  **{"norm": "rmsnorm", "qk_norm": "rmsnorm", "final_norm": "norm"},
  "layer_scale": 1e-4,
  **{"rope": "axial", "rope_kw": {"register_base": 100.0}},
  **{"registers": 4, "registers_last": True, "pool_type": "tok"},
  **{"qkv_bias": False, "gelu": "exact"},
  **{"weight_init": "deit", "head_zeroinit": False},
}
#            width, depth, mlp_dim, num_heads
_SIZES = {
  "S": (384, 12, 1536, 6),
  "B": (768, 12, 3072, 12),
  "L": (1024, 24, 4096, 16),
  "XL": (1152, 28, 4608, 16),
}
_NAMES = ("width", "depth", "mlp_dim", "num_heads")
VARIANTS: dict[str, dict] = {
  f"vit5-{name}": _SHARED | dict(zip(_NAMES, size, strict=True))
  for name, size in _SIZES.items()
}
