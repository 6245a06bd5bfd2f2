"""Random programs in a real kernel: tc accepts each, and what it shows is what was asked for.

`python -m tests.network.fuzz_in_guest`, as root in a kernel with netem. Exits with 1 at the first
example that fails, the smallest that hypothesis finds, or with 0. Examples are the same every time.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence

from hypothesis import HealthCheck, Phase, given, settings

from netbench.network.shaping.apply import apply, clear, read_back
from netbench.network.shaping.program import Program
from netbench.testing.nodes import fake_nodes
from tests.network.strategies import programs

NUM_EXAMPLES = 100
NUM_LARGE_EXAMPLES = 4
"""With filters in hash tables: from 256 peers up."""

FIXED = settings(
    deadline=None,
    derandomize=True,
    database=None,
    phases=(Phase.generate, Phase.shrink),
    suppress_health_check=list(HealthCheck),
)

counts: dict[str, int] = {}
"""Check -> examples that were loaded."""


def run(node: int, argv: Sequence[str], stdin: str) -> tuple[int, str, str]:
    """Every node's program is loaded on the same interface, one after the other."""
    done = subprocess.run(argv, input=stdin, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


NODES = fake_nodes(run, count=300)


def loads_and_reads_back(program: Program) -> None:
    """On an interface without shaping, which is then without shaping again."""
    apply([program], NODES)
    (found,) = read_back([program], NODES)
    assert not found.problems, "\n".join([*found.problems, program.text])
    clear([program], NODES)


@settings(FIXED, max_examples=NUM_EXAMPLES)
@given(programs())
def small_programs(program: Program) -> None:
    """2 to 12 nodes, every sharing, every field."""
    loads_and_reads_back(program)
    count("small")


@settings(FIXED, max_examples=NUM_LARGE_EXAMPLES)
@given(programs(min_nodes=257, max_nodes=300))
def large_programs(program: Program) -> None:
    """More peers than a hash table has buckets."""
    loads_and_reads_back(program)
    count("hashed" if "hashkey" in program.text else "large")


CHECKS: tuple[Callable[[], None], ...] = (small_programs, large_programs)


def count(name: str) -> None:
    counts[name] = counts.get(name, 0) + 1


def main() -> int:
    """Run all checks; print how many examples each loaded."""
    link = "link add eth0 type veth peer name eth1\nlink set eth0 up\nlink set eth1 up\n"
    subprocess.run(["ip", "-batch", "-"], input=link, text=True, check=True)
    for check in CHECKS:
        check()
    print("read back equal:", ", ".join(f"{name} {number}" for name, number in counts.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
