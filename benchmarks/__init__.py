"""Comparisons with peers, run from a checkout; not in the wheel."""
