"""What a GPT that computes knows of tokens: how many there are, and the files that hold them.

A token file is little-endian unsigned 16-bit numbers, one per token, nothing else: what most tools
for GPT-2's vocabulary of 50,257 write.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from netbench.errors import PlanError
from netbench.scenario.model import Workload

Tokens = npt.NDArray[np.uint16]

DEFAULT_VOCABULARY = 256
"""Where the workload counts no embedding parameters: bytes."""

EXPECTED = "expected little-endian unsigned 16-bit numbers, as array.astype('<u2').tofile(path)"

NUMPY_MAGIC = b"\x93NUMPY"
"""What a file of numpy.save begins with. Source: numpy.lib.format."""


def vocabulary_size(workload: Workload) -> int:
    """Tokens that the workload's embedding parameters leave room for, beside a vector per position.

    Raises PlanError where they leave none.
    """
    if not workload.embedding_parameters:
        return DEFAULT_VOCABULARY
    size = workload.embedding_parameters // workload.hidden - workload.sequence
    if size < 2:
        least = (workload.sequence + 2) * workload.hidden
        raise PlanError(
            f"embedding_parameters is {workload.embedding_parameters}: too few for "
            f"{workload.sequence} positions and a vocabulary of hidden {workload.hidden}; write at "
            f"least {least}, or leave it out for a vocabulary of {DEFAULT_VOCABULARY}"
        )
    return size


def map_tokens(path: Path, sequence: int) -> Tokens:
    """The tokens of a file, mapped into memory. Raises PlanError for one that is missing, is no
    token file, or has fewer than a sequence and its targets."""
    try:
        tokens = np.memmap(path, dtype="<u2", mode="r")
    except (OSError, ValueError) as error:
        why = str(error).rstrip(".")
        raise PlanError(f"{path}: cannot be read as a token file: {why}; {EXPECTED}") from error
    if tokens[: len(NUMPY_MAGIC) // 2].tobytes() == NUMPY_MAGIC:
        raise PlanError(f"{path}: was written by numpy.save, with a head; {EXPECTED}")
    if len(tokens) <= sequence:
        raise PlanError(
            f"{path}: has {len(tokens)} tokens; a sequence of {sequence} needs {sequence + 1}"
        )
    return tokens


def check_tokens(path: Path, tokens: Tokens, first: int, vocabulary: int) -> None:
    """Raises PlanError for a token beyond the vocabulary. tokens: of a file, from the first-th."""
    if tokens.max() >= vocabulary:
        where = int(tokens.argmax())
        raise PlanError(
            f"{path}: token {first + where} is {tokens[where]}; the model knows 0 to "
            f"{vocabulary - 1} (its embedding_parameters over hidden, less a position per sequence "
            "element)"
        )


def check_token_file(path: Path, workload: Workload, num_sequences: int) -> None:
    """Raises PlanError unless a model can train on the first so many sequences of a file, which
    begins again after its last."""
    tokens = map_tokens(path, workload.sequence)
    num_read = min(num_sequences, (len(tokens) - 1) // workload.sequence)
    read = tokens[: num_read * workload.sequence + 1]
    if read[::2].any() and not read[1::2].any():
        raise PlanError(
            f"{path}: every second 16-bit number is 0, as if they were of 32 or 64 bits; {EXPECTED}"
        )
    check_tokens(path, read, 0, vocabulary_size(workload))
