"""Experiments: what a config path names."""
