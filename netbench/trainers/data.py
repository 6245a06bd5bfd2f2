"""What is trained on: sequences of tokens, the same whoever asks for them, in whatever layout.

Sample `i` of a training run is sequence `i` of its data, whether one process or a thousand train.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import numpy as np
import torch

from netbench.workload.tokens import check_tokens, map_tokens

PERIOD = 4
"""Synthetic tokens are predictable from the one this far before them, so that there is something to
learn."""


class Data(Protocol):
    """Token sequences by index."""

    def sample(self, index: int) -> torch.Tensor:
        """(sequence + 1,) int64: inputs, and the same shifted by one as targets."""


class SyntheticData:
    """Sequences that repeat a random motif of `PERIOD` tokens, with every eighth token random.

    vocabulary: tokens are 0 .. vocabulary - 1. sequence: inputs per sample.
    """

    def __init__(self, *, seed: int, vocabulary: int, sequence: int) -> None:
        self._seed, self._vocabulary, self._sequence = seed, vocabulary, sequence

    def sample(self, index: int) -> torch.Tensor:
        """(sequence + 1,) int64; depends on the seed and the index alone."""
        random = np.random.default_rng((self._seed, index))
        length = self._sequence + 1
        tokens = np.resize(random.integers(self._vocabulary, size=PERIOD), length)
        noise = random.integers(self._vocabulary, size=length)
        return torch.from_numpy(np.where(random.random(length) < 1 / 8, noise, tokens))


class TokenFile:
    """A memory-mapped file of tokens, cut into sequences; after the last comes the first again.

    Raises PlanError for a file that is missing, too short, or has tokens beyond the vocabulary
    (found when a sample is read).
    """

    def __init__(self, path: Path, *, vocabulary: int, sequence: int) -> None:
        self._path, self._vocabulary, self._sequence = path, vocabulary, sequence
        self._tokens = map_tokens(path, sequence)
        self._num_samples = (len(self._tokens) - 1) // sequence

    def sample(self, index: int) -> torch.Tensor:
        """(sequence + 1,) int64."""
        start = index % self._num_samples * self._sequence
        tokens = self._tokens[start : start + self._sequence + 1]
        check_tokens(self._path, tokens, start, self._vocabulary)
        return torch.from_numpy(tokens.astype(np.int64))
