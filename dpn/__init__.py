"""Dual PatchNorm and its relatives: models, training, evaluation, input.

Every module belongs to this package: `dpn.trainers.update`, `dpn.configs.mini`.
In a checkout, `dpn/trainers` and its like are links to the folders of the same
name beside it, which is why `python -m trainers.train` works there; a wheel has
the folders themselves. Import by the long names: `import trainers.update` would
load a second copy of the module.
"""

__version__ = "0.1.0"
