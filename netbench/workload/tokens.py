"""Tokens of a GPT that computes: the size of the vocabulary, and files of training data.

A token file is little-endian unsigned 16-bit numbers, one per token, nothing else: what most tools
for GPT-2's vocabulary of 50,257 write.
"""

from pathlib import Path

import numpy as np
import numpy.typing as npt

from netbench.errors import PlanError
from netbench.scenario.model import Workload

Tokens = npt.NDArray[np.uint16]

DEFAULT_VOCABULARY = 256
"""Vocabulary of a workload without embedding parameters: bytes."""

EXPECTED = "expected little-endian unsigned 16-bit numbers, as array.astype('<u2').tofile(path)"

NUMPY_MAGIC = b"\x93NUMPY"
"""First bytes of a file of numpy.save. Source: numpy.lib.format."""


def vocabulary_size(workload: Workload) -> int:
    """Return the number of tokens that the embedding parameters have room for, beside a vector per
    position. Raises PlanError if there is none."""
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
    """Map the tokens of a file into memory. Raises PlanError if it is missing, is not a token file,
    or is shorter than a sequence and its targets."""
    try:
        tokens = np.memmap(path, dtype="<u2", mode="r")
    except (OSError, ValueError) as error:
        why = str(error).rstrip(".")
        raise PlanError(f"{path}: cannot be read as a token file: {why}; {EXPECTED}") from error
    if tokens[: len(NUMPY_MAGIC) // 2].tobytes() == NUMPY_MAGIC:
        raise PlanError(f"{path}: was written by numpy.save, with a header; {EXPECTED}")
    if len(tokens) <= sequence:
        raise PlanError(
            f"{path}: has {len(tokens)} tokens; a sequence of {sequence} needs {sequence + 1}"
        )
    return tokens


def check_tokens(path: Path, tokens: Tokens, first: int, vocabulary: int) -> None:
    """Raise PlanError for a token beyond the vocabulary. first: index of `tokens` in the file."""
    if tokens.max() >= vocabulary:
        where = int(tokens.argmax())
        raise PlanError(
            f"{path}: token {first + where} is {tokens[where]}; the model knows 0 to "
            f"{vocabulary - 1} (its embedding_parameters over hidden, less a position per sequence "
            "element)"
        )


def check_token_file(path: Path, workload: Workload, num_sequences: int) -> None:
    """Raise PlanError unless a model can train on the first `num_sequences` sequences of a file,
    which starts again after its last."""
    tokens = map_tokens(path, workload.sequence)
    num_read = min(num_sequences, (len(tokens) - 1) // workload.sequence)
    read = tokens[: num_read * workload.sequence + 1]
    if read[::2].any() and not read[1::2].any():
        raise PlanError(
            f"{path}: every second 16-bit number is 0, as in 32-bit or 64-bit numbers; {EXPECTED}"
        )
    check_tokens(path, read, 0, vocabulary_size(workload))
