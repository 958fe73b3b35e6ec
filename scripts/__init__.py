"""Commands, and the libraries they share."""

from dpn import quick_help

quick_help.prepare()
