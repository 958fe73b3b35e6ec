import dpn  # noqa: F401, makes configs.x the same module as dpn.configs.x
