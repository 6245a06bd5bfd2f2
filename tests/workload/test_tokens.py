"""Token files, and the vocabulary of a model that reads them."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from netbench.errors import PlanError
from netbench.scenario import load_scenario
from netbench.workload.tokens import DEFAULT_VOCABULARY, check_token_file, vocabulary_size

SEQUENCE, VOCABULARY, HIDDEN = 8, 100, 4
MODEL = dataclasses.replace(
    load_scenario("case3").workload,
    sequence=SEQUENCE,
    hidden=HIDDEN,
    embedding_parameters=(SEQUENCE + VOCABULARY) * HIDDEN,
)


def write(folder: Path, *numbers: int, dtype: str = "<u2") -> Path:
    path = folder / "tokens.bin"
    np.array(numbers, dtype).tofile(path)
    return path


def test_the_vocabulary_is_what_positions_leave_of_the_embeddings() -> None:
    """Without embedding parameters it is bytes; too few are refused with the number needed."""
    assert vocabulary_size(MODEL) == VOCABULARY
    without = dataclasses.replace(MODEL, embedding_parameters=0)
    assert vocabulary_size(without) == DEFAULT_VOCABULARY == 256
    poor = dataclasses.replace(MODEL, embedding_parameters=SEQUENCE * HIDDEN + HIDDEN)
    with pytest.raises(PlanError, match=f"write at least {(SEQUENCE + 2) * HIDDEN}, or leave"):
        vocabulary_size(poor)


def test_only_what_is_read_must_be_in_the_vocabulary(tmp_path: Path) -> None:
    """A sequence and the target of its last token; the file may have more, or fewer sequences. What
    is left behind its last whole one is never read."""
    first, unknown = [*range(1, SEQUENCE + 2)], [VOCABULARY] * SEQUENCE
    path = write(tmp_path, *first, *unknown)
    check_token_file(path, MODEL, 1)
    with pytest.raises(PlanError, match=r"tokens\.bin: token 9 is 100; the model knows 0 to 99"):
        check_token_file(path, MODEL, 1000)
    check_token_file(write(tmp_path, *first, *unknown[:-1]), MODEL, 1000)


@pytest.mark.parametrize(
    ("numbers", "dtype", "message"),
    [
        (range(SEQUENCE), "<u2", "has 8 tokens; a sequence of 8 needs 9"),
        ((), "<u2", "cannot be read as a token file: cannot mmap an empty file"),
        (range(19), "u1", "token file: .* not a multiple of the data-type size; expected"),
        (range(1, 20), "<i4", "every second 16-bit number is 0, as in 32-bit or 64-bit numbers"),
        (range(1, 20), "<i8", "every second 16-bit number is 0, as in 32-bit or 64-bit numbers"),
        (range(1, 20), ">u2", "token 8 is 2304; the model knows 0 to 99"),
    ],
)
def test_what_is_no_token_file_is_refused(
    numbers: range, dtype: str, message: str, tmp_path: Path
) -> None:
    """Too short, of other numbers, or with their bytes the other way round."""
    with pytest.raises(PlanError, match=message):
        check_token_file(write(tmp_path, *numbers, dtype=dtype), MODEL, 1)


def test_an_array_that_numpy_saved_is_refused(tmp_path: Path) -> None:
    """Its head would be read as tokens."""
    path = tmp_path / "tokens.npy"
    np.save(path, np.arange(100, dtype="<u2"))
    with pytest.raises(
        PlanError, match=r"was written by numpy\.save, with a header; expected little"
    ):
        check_token_file(path, MODEL, 1)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    """With what was to be there."""
    with pytest.raises(PlanError, match=r"No such file or directory: .*; expected little-endian"):
        check_token_file(tmp_path / "none", MODEL, 1)
