import dpn  # noqa: F401, makes evaluators.x the same module as dpn.evaluators.x
