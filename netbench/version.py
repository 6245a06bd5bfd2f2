"""Versions of netbench and its trainers, which records name."""

__version__ = "0.1.0"

TRAINER_RULES = 1
"""Raised whenever trainers run the same plan in another way, so that no run mixes both ways."""
