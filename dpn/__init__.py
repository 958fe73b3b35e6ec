"""Dual PatchNorm and its relatives: models, training, evaluation, input.

All of it is one package: `dpn.configs`, `dpn.evaluators`, `dpn.input_pipeline`,
`dpn.scripts` and `dpn.trainers` too, so that no folder of yours with one of
these names can stand in their way. In a checkout they lie beside this folder; a
wheel has them within.
"""

import os

from dpn import checkout

__version__ = "0.1.0"

if not os.path.isdir(os.path.join(__path__[0], "trainers")):
  checkout.add_folders(__path__)
