"""Versions of netbench and its trainers, which records name."""

__version__ = "0.1.0"

TRAINER_RULES = 6
"""Increased when trainers run the same plan differently, so that no run mixes two ways."""
