import dpn  # noqa: F401, makes scripts.x the same module as dpn.scripts.x
