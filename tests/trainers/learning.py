"""A task that a small model learns within a hundred steps: how far does a system get in them?"""

from __future__ import annotations

import math
import statistics
from pathlib import Path
from typing import Any

import numpy as np

from netbench.plan.model import Plan
from tests.trainers.parity import real_plan

VOCABULARY, HIDDEN, SEQUENCE = 16, 64, 16

SURPRISES = 1 / 8
"""Fraction of tokens drawn at random; the others follow from the token before."""

STEPS = 96
LAST = 24
"""Steps whose mean loss is compared: a batch of 8 sequences is noisy."""


def write_tokens(path: Path) -> str:
    """A token file: every token follows from the one before it, but for surprises."""
    random = np.random.default_rng(0)
    follows = random.permutation(VOCABULARY)
    tokens = [0]
    for surprise, drawn in zip(
        random.random(20_000) < SURPRISES, random.integers(VOCABULARY, size=20_000), strict=True
    ):
        tokens.append(int(drawn if surprise else follows[tokens[-1]]))
    np.asarray(tokens, "<u2").tofile(path)
    return str(path)


def least_loss() -> float:
    """Entropy of a token given the one before, nats: what no model can go below."""
    other = SURPRISES / VOCABULARY
    expected = 1 - SURPRISES + other
    return -expected * math.log(expected) - (VOCABULARY - 1) * other * math.log(other)


def learning_plan(system: str, folder: Path, **changes: Any) -> Plan:
    """Four ranks with the whole of a model of one layer."""
    return real_plan(
        system,
        layers=(1,),
        dp=4,
        hidden=HIDDEN,
        heads=2,
        sequence=SEQUENCE,
        embedding_parameters=(VOCABULARY + SEQUENCE) * HIDDEN,
        token_file=write_tokens(folder / "tokens"),
        **changes,
    )


def final_loss(losses: list[float]) -> float:
    """Mean of the last steps."""
    assert len(losses) == STEPS
    return statistics.fmean(losses[-LAST:])
