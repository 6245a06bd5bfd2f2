"""Lines that an agent loads as root."""

from __future__ import annotations

import pytest

from netbench.network.shaping.batch import foreign_line
from tests.network.shaping_cases import CASES, kept_text


@pytest.mark.parametrize(
    "line",
    [
        "exec bpf import /tmp/socket run sh",
        "qdisc add dev eth1 root pfifo",
        "filter add dev eth0 parent 6e62: bpf object-file evil.o",
        "filter add dev eth0 parent 6e62: u32 match u32 0 0 action xt -j LOG",
        "qdisc add dev eth0 root netem distribution /home/user/file",
        "qdisc show dev eth0",
        "qdisc add dev eth0 root pfifo; id",
    ],
)
def test_a_line_that_does_more_than_shape_is_refused(line: str) -> None:
    """tc can run programs, load code and read files."""
    harmless = "qdisc add dev eth0 root handle 6e62: htb default 1"
    assert foreign_line(f"{harmless}\n{line}\n{harmless}", "eth0") == line
    assert foreign_line(harmless, "eth0") == ""


@pytest.mark.parametrize("name", CASES)
def test_every_line_that_netbench_writes_is_accepted(name: str) -> None:
    """The golden files name the interface."""
    text = kept_text(name)
    interface = text.split("dev ")[1].split()[0]
    assert foreign_line(text, interface) == ""
