"""From one program to another while packets flow: exact text, and what holds for all of them."""

from __future__ import annotations

import ipaddress
import itertools
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netbench.network.shaping.batch import HANDLE
from netbench.network.shaping.program import CAP_MINOR, UNLIMITED_BPS, Program, compile_program
from netbench.network.shaping.readback import KernelState, differences, parse
from netbench.network.shaping.tc import TABLES, HtbClass, Leaf
from netbench.network.shaping.update import is_replaced, summary, update_text
from netbench.scenario.model import NO_BURSTS, BurstLoss
from tests.network.shaping_cases import CASES
from tests.network.tc_model import Interface
from tests.networks import ADDRESSES

POOL = [f"10.77.{i}.{last}" for i in (0, 1) for last in range(1, 7)]
POOL += [f"fd77::{i}:{last}" for i in (1, 2) for last in range(1, 4)]


def loaded(program: Program) -> Interface:
    interface = Interface()
    for line in program.text.splitlines():
        interface.run(line)
    return interface


def case(name: str) -> Program:
    network, scale = CASES[name]
    return compile_program(network, 0, ADDRESSES, "eth0", scale)


def text(before: Program, after: Program) -> list[str]:
    return update_text(after, loaded(before).found()).splitlines()


def change(program: Program, minor: int, **fields: Any) -> Program:
    leaves = [replace(x, **fields) if x.minor == minor else x for x in program.leaves]
    tables = {x.minor: TABLES[x.distribution] for x in leaves if x.jitter_us}
    classes = [replace(x, mpu_bytes=tables.get(x.minor, 0)) for x in program.classes]
    return replace(program, leaves=tuple(leaves), classes=tuple(classes))


def without(program: Program, minor: int) -> Program:
    return replace(
        program,
        classes=tuple(x for x in program.classes if x.minor != minor),
        leaves=tuple(x for x in program.leaves if x.minor != minor),
        matches=tuple(x for x in program.matches if x[1] != minor),
    )


def test_nothing_is_sent_where_nothing_differs() -> None:
    """A second `apply` only reads."""
    for name in CASES:
        assert text(case(name), case(name)) == []


def test_an_interface_without_our_root_gets_the_whole_program() -> None:
    """A foreign root gets it too, and the kernel refuses it without a race."""
    assert update_text(case("pair"), Interface().found()) == case("pair").text
    foreign = replace(Interface().found(), root=("tbf", "8001:"))
    assert update_text(case("pair"), foreign) == case("pair").text


def test_a_link_is_changed_in_place_with_every_field() -> None:
    """netem keeps what is not sent; what is queued stays queued."""
    assert text(case("pair"), change(case("pair"), 2, delay_us=2000, loss=0.01)) == [
        "qdisc change dev eth0 parent 6e62:2 netem limit 66723 delay 2000us 0us 0% loss 1% "
        "duplicate 0% corrupt 0% reorder 0% rate 5000000000bit"
    ]


def test_a_new_destination_is_matched_last_and_one_that_goes_first() -> None:
    """Neither is ever in a class without a netem."""
    less, more = without(case("pair-scaled"), 3), case("pair-scaled")
    assert text(less, more) == [
        "class add dev eth0 parent 6e62: classid 6e62:3 htb rate 1000000000000bit "
        "ceil 1000000000000bit burst 125000000b cburst 125000000b quantum 200000",
        next(line for line in more.text.splitlines() if "parent 6e62:3 handle 3:" in line),
        "filter add dev eth0 parent 6e62: protocol ip prio 4 u32 match ip dst 10.77.0.3/32 "
        "flowid 6e62:3",
        "filter add dev eth0 parent 6e62: protocol ipv6 prio 6 u32 match ip6 dst fd00::3/128 "
        "flowid 6e62:3",
    ]
    assert text(more, less) == [
        "filter del dev eth0 parent 6e62: protocol ip prio 4 handle 800::801 u32",
        "filter del dev eth0 parent 6e62: protocol ipv6 prio 6 handle 801::801 u32",
        "class del dev eth0 classid 6e62:3",
    ]


def test_a_destination_changes_its_class_by_the_handle_of_its_filter() -> None:
    """`pair` to `class`: the queue it leaves goes after it."""
    lines = text(case("pair-scaled"), case("class-scaled"))
    assert lines[-2:] == [
        "filter change dev eth0 parent 6e62: protocol ip prio 4 handle 800::802 u32 flowid 6e62:3",
        "class del dev eth0 classid 6e62:4",
    ]


def test_only_a_new_netem_is_without_a_table_of_jitter() -> None:
    """Other tables are loaded over it; `uniform` is the lack of one."""
    normal = change(case("pair"), 2, jitter_us=100)
    pareto = change(normal, 2, distribution="pareto")
    uniform = change(normal, 2, distribution="uniform", delay_us=900)
    fields = "delay 1000us 100us 0% distribution pareto"
    there, class_there = text(normal, pareto)
    assert there.startswith("qdisc change dev eth0 parent 6e62:2 netem")
    assert fields in there
    assert class_there.startswith("class change dev eth0 parent 6e62: classid 6e62:2 htb")
    assert class_there.endswith(" mpu 2")
    new, _ = text(normal, uniform)
    assert new.startswith("qdisc replace dev eth0 parent 6e62:2 handle 8002: netem")
    interface = loaded(normal)
    for program, handle in ((uniform, "8002:"), (pareto, "8002:"), (uniform, "2:")):
        for line in update_text(program, interface.found()).splitlines():
            interface.run(line)
        assert interface.leaves["6e62:2"]["handle"] == handle
        assert differences(program, interface.found()) == ()


def test_a_nic_cap_comes_while_its_destinations_wait_in_a_second_class() -> None:
    """The parent of a class cannot be changed."""
    lines = text(without(without(case("pair-scaled"), 3), 4), case("nic-scaled"))
    kinds = [" ".join(line.split()[:2]) for line in lines[:12]]
    second = lines[1].split()
    assert second[5:7] == ["6e62:ffff", "classid"]
    assert second[7] == "6e62:8002"
    assert kinds == [
        "class add", "class add", "qdisc add", "filter change", "filter change", "class del",
        "class add", "qdisc add", "filter change", "filter change", "class del", "class add",
    ]  # fmt: skip


def test_exempt_ports_are_added_and_removed() -> None:
    """They precede all destinations, which do not change."""
    plain, exempt = case("pair"), replace(case("pair"), exempt_ports=(22,))
    assert text(plain, exempt)[0] == (
        "filter add dev eth0 parent 6e62: protocol ip prio 1 u32 match ip protocol 6 0xff "
        "match ip sport 22 0xffff flowid 6e62:0"
    )
    assert len(text(plain, exempt)) == 4
    assert [line.split()[1] for line in text(exempt, plain)] == ["del"] * 4


@pytest.mark.parametrize(
    "fields",
    [
        {"default_class": "5"},
        {"root": ("prio", HANDLE)},
        {"classes": {"6e62:9": {"parent": "6e62:2"}}},
        {"leaves": {"2:1": {"kind": "tbf", "handle": "9:"}}},
    ],
)
def test_a_configuration_that_netbench_never_makes_is_replaced(fields: dict[str, object]) -> None:
    """Somebody else changed the qdisc, so that no update without a gap exists."""
    held: KernelState = replace(loaded(case("pair")).found(), **fields)  # type: ignore[arg-type]
    assert is_replaced(case("pair"), held)
    first, rest = update_text(case("pair"), held).split("\n", 1)
    assert first == "qdisc del dev eth0 root handle 6e62:"
    assert rest == case("pair").text


SHARES = st.sampled_from([0.0, 0.001, 0.25])


@st.composite
def leaves(draw: st.DrawFn, minor: int) -> Leaf:
    return Leaf(
        minor=minor,
        delay_us=draw(st.sampled_from([10, 11_000, 134_000])),
        jitter_us=draw(st.sampled_from([0, 0, 500])),
        loss=draw(SHARES),
        rate_bps=draw(st.sampled_from([0, 8_000_000, 5_000_000_000])),
        limit_packets=draw(st.sampled_from([1000, 50_000])),
        distribution=draw(st.sampled_from(sorted(TABLES))),
        jitter_correlation=draw(SHARES),
        bursts=draw(st.sampled_from([NO_BURSTS, NO_BURSTS, BurstLoss(to_bad=0.01, to_good=0.5)])),
        duplication=draw(SHARES),
        corruption=draw(SHARES),
        reordering=draw(SHARES),
    )


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """Some of POOL over a few classes, with or without a cap; every field may change."""
    addresses = sorted(
        draw(st.lists(st.sampled_from(POOL), unique=True)),
        key=lambda address: (ipaddress.ip_address(address).version, address),
    )
    matches = [(address, draw(st.integers(2, 6))) for address in addresses]
    minors = sorted({minor for _, minor in matches})
    cap = draw(st.booleans())
    mine = tuple(draw(leaves(minor)) for minor in minors)
    classes = [HtbClass(
        minor=CAP_MINOR, parent=0, quantum_bytes=1514, burst_bytes=1514, ceil_burst_bytes=1514,
        rate_bps=draw(st.sampled_from([10**6, 10**9])), ceil_bps=10**9,
    )] * cap  # fmt: skip
    classes += [
        HtbClass(
            minor=leaf.minor,
            parent=CAP_MINOR if cap else 0,
            rate_bps=draw(st.sampled_from([8_000, UNLIMITED_BPS])),
            ceil_bps=UNLIMITED_BPS,
            burst_bytes=1514,
            ceil_burst_bytes=draw(st.sampled_from([3000, 125_000])),
            quantum_bytes=1514,
            mpu_bytes=TABLES[leaf.distribution] if leaf.jitter_us else 0,
        )
        for leaf in mine
    ]
    return Program(
        node=0,
        interface="eth0",
        classes=tuple(classes),
        leaves=mine,
        matches=tuple(matches),
        exempt_ports=tuple(sorted(draw(st.sets(st.sampled_from([22, 2222]))))),
    )


def hashed_from(count: int) -> AbstractContextManager[object]:
    """Far fewer destinations than 256 show what hashed filters do."""
    return mock.patch.multiple("netbench.network.shaping.program", HASH_FROM_PEERS=count)


def check_state(interface: Interface, program: Program) -> None:
    """The interface does with every packet what the program would do on a new one."""
    assert differences(program, interface.found()) == ()
    assert update_text(program, interface.found()) == ""
    assert interface.effective() == loaded(program).effective()
    targets = dict(program.matches)
    versions = {ipaddress.ip_address(address).version for address in targets}
    for address in POOL:
        minor = targets.get(address)
        assert interface.lookup(address) == (f"{HANDLE}{minor:x}" if minor else "")
        version = ipaddress.ip_address(address).version
        for port in program.exempt_ports if version in versions else ():
            assert interface.lookup(address, port) == HANDLE


@settings(max_examples=150, deadline=None)
@given(st.lists(programs(), min_size=2, max_size=4), st.sampled_from([3, 256]))
def test_no_destination_is_ever_unshaped(sequence: Sequence[Program], hashed: int) -> None:
    """Line by line: what both programs shape is matched and in a class with a netem."""
    with hashed_from(hashed), mock.patch("netbench.network.shaping.update.HASH_FROM_PEERS", hashed):
        interface = loaded(sequence[0])
        for before, after in itertools.pairwise(sequence):
            both = dict(before.matches).keys() & dict(after.matches).keys()
            assert not is_replaced(after, interface.found())
            for line in update_text(after, interface.found()).splitlines():
                interface.run(line)
                for address in both:
                    assert interface.lookup(address) in interface.leaves, line
            check_state(interface, after)


@settings(max_examples=150, deadline=None)
@given(programs(), programs(), programs(), st.integers(0, 60), st.sampled_from([3, 256]))
def test_an_interrupted_update_is_completed_by_the_next(
    first: Program, second: Program, third: Program, num_lines: int, hashed: int
) -> None:
    """A node that lost its controller in the middle takes the next program like any other."""
    with hashed_from(hashed), mock.patch("netbench.network.shaping.update.HASH_FROM_PEERS", hashed):
        interface = loaded(first)
        for line in update_text(second, interface.found()).splitlines()[:num_lines]:
            interface.run(line)
        for line in update_text(third, interface.found()).splitlines():
            interface.run(line)
        check_state(interface, third)


def test_a_batch_is_counted_by_verb_and_object() -> None:
    """A whole configuration, a difference, and no change at all."""
    program = case("pair")
    assert summary(program.text) == "add 1 root, 3 classes, 3 leaves, 5 filters"
    golden = Path(__file__).parents[2] / "golden" / "network"
    tables = (golden / "pair.tables.json").read_text()
    found = parse(tables, (golden / "pair.classes.txt").read_text())
    assert summary(update_text(program, found)) == "nothing"
    assert summary(update_text(case("pair-scaled"), found)) == "change 3 leaves"
