"""Parameters in files: read, load into a model, export to other libraries.

A path to a checkpoint means the same everywhere, see `files.locate`.
"""
