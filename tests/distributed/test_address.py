"""Values of --dask."""

from __future__ import annotations

import os

import pytest

from netbench.distributed.address import parse_address


def test_local_is_a_number_of_workers() -> None:
    assert parse_address("local:3") == 3
    assert parse_address("local") == len(os.sched_getaffinity(0))


def test_a_scheduler_is_an_address_with_its_protocol() -> None:
    assert parse_address("tls://10.0.0.1:8786") == "tls://10.0.0.1:8786"


@pytest.mark.parametrize("wrong", ["", "local:", "local:0", "local:-1", "local:x", "10.0.0.1:8786"])
def test_anything_else_is_refused_with_an_example(wrong: str) -> None:
    with pytest.raises(ValueError, match=r"write e\.g\. tcp://10\.0\.0\.1:8786"):
        parse_address(wrong)
