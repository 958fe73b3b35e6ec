"""Small Transformers for small images (arXiv 2104.05704), as LaPE uses them.

`lite-7/4` is ViT-Lite: patches and a class token. `cvt-7/4` pools the sequence
instead, `cct-7/3x1` also replaces the patches by one convolution of size 3. The
number after the name is the depth.
"""

# As the authors' code, not their Equation 1: the block normalizes its residual.
_COMMON = {
  "width": 256,
  "mlp_dim": 512,
  "num_heads": 4,
  "block_ln": "cct",
  "norm": "layernorm,eps=1e-5",
  "posemb": "learn,std=0.2",
  "posemb_join": "add,cls_row=true",
  "gelu": "exact",
  "qkv_bias": False,
  "weight_init": "cct",
  "head_zeroinit": False,
}
_POOLS = {"lite": "tok", "cvt": "seq", "cct": "seq"}

VARIANTS = {
  f"{name}-{depth}": {**_COMMON, "depth": depth, "pool_type": pool}
  for name, pool in _POOLS.items()
  for depth in (6, 7)
}


def conv_stem(variant: str, patch: str) -> tuple[int, int]:
  """Returns (kernel size, layers) of "3x1", the last part of `variant`."""
  kernel_size, _, num_layers = patch.partition("x")
  if not kernel_size.isdigit() or not num_layers.isdigit():
    raise ValueError(
      f"The part of variant {variant!r} after the slash must be the kernel "
      "size and the number of convolutions, as in 'cct-7/3x1'."
    )
  return int(kernel_size), int(num_layers)
