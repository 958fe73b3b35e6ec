import dpn  # noqa: F401, makes trainers.x the same module as dpn.trainers.x
