"""From a config to a trained model."""

from dpn import quick_help

quick_help.prepare()
