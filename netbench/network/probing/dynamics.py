"""Verify that TCP acts on a shaped network: messages on a new and on an idle connection.

Each class of link carries messages of the plan's own sizes. Their times are compared with slow
start in closed form at full size (`slow_start`).
"""

import json
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from netbench.network.nodes import ALONE, COMMAND_TIMEOUT_S, all_or_error, at_once, output_of
from netbench.network.probing import message_probe
from netbench.network.probing.measure import Endpoints
from netbench.network.probing.samples import LinkSample, rounds, sample_links
from netbench.network.probing.slow_start import message_s, tcp_path, window_after, window_after_idle
from netbench.network.probing.verify import LinkCheck
from netbench.scenario.model import Network

TOLERANCE = 0.1
"""Largest relative deviation of a message from the closed form, which knows neither the packets of
several segments that TCP hands over, nor where cubic ends slow start."""

IDLE_S = 2.0
"""Idle time before the second message of each size, seconds."""

COLD, IDLE = "cold_message_s", "idle_message_s"
"""Quantities of checks: a message on a new connection, and one after `IDLE_S`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Messages:
    """Messages to send. network: at full size; TCP acts. scale: divides sizes. sizes: bytes."""

    network: Network
    scale: float
    sizes: tuple[int, ...]


def message_samples(network: Network) -> tuple[LinkSample, ...]:
    """Sample one pair of nodes of every class: equal links there, equal links back.

    Links that lose or reorder packets, or may overflow, have no closed form.
    """
    chosen: dict[object, LinkSample] = {}
    for sample in sample_links(network):
        ends = sample.src, sample.dsts[0]
        links = network.link(*ends), network.link(*reversed(ends))
        if sample.kind == "link" and not any(link.impairments for link in links):
            chosen.setdefault(links, sample)
    return tuple(chosen.values())


def check_messages(messages: Messages, endpoints: Endpoints) -> tuple[LinkCheck, ...]:
    """Send every message over every class of link, and compare. Raises NetworkError.

    The nodes share a clock.
    """
    checks: list[LinkCheck] = []
    for group in rounds(message_samples(messages.network), messages.network):
        for size in messages.sizes:
            sizes = [max(1, round(size / messages.scale))] * 2
            found = send_messages(group, sizes, [0.0, IDLE_S], endpoints)
            for sample, times_s in found.items():
                checks += _compare(sample, size, times_s, messages.network)
    return tuple(checks)


def send_messages(
    samples: Sequence[LinkSample],
    sizes: Sequence[int],
    idle_s: Sequence[float],
    endpoints: Endpoints,
) -> dict[LinkSample, list[float]]:
    """Send messages on a new connection of each sample, all samples at once.

    sizes: bytes as they are sent. idle_s: before each message. Return the seconds from the start of
    each to its last byte. Raises NetworkError.
    """
    source = Path(message_probe.__file__).read_text(encoding="utf-8")
    calls = {}
    for sample in samples:
        address = endpoints.addresses[sample.dsts[0]][0]
        token = secrets.token_hex(message_probe.TOKEN_BYTES)
        job = {"address": address, "token": token, "sizes": list(sizes)}
        jobs = {
            sample.dsts[0]: {**job, "op": "serve"},
            sample.src: {**job, "op": "send", "idle_s": list(idle_s)},
        }
        for node, of_node in jobs.items():
            argv = (endpoints.python_of(node), *ALONE, "-")
            text = f"{source}\nmain({json.dumps(of_node)!r})\n"
            calls[node] = partial(output_of, endpoints.nodes[node], argv, text)
    printed = all_or_error(at_once(calls, COMMAND_TIMEOUT_S), "sending messages")
    answers = {node: json.loads(text) for node, text in printed.items()}
    return {
        sample: [
            end_s - start_s
            for start_s, end_s in zip(
                answers[sample.src]["starts_s"], answers[sample.dsts[0]]["ends_s"], strict=True
            )
        ]
        for sample in samples
    }


def _compare(
    sample: LinkSample, size: int, times_s: Sequence[float], network: Network
) -> Iterator[LinkCheck]:
    path = tcp_path(network, sample.src, sample.dsts[0])
    # Its sender learns that the first message has arrived one round trip after it was sent.
    grown = window_after(path, size, path.first_window)
    restarted = window_after_idle(path, grown, IDLE_S + path.rtt_s)
    windows = {COLD: path.first_window, IDLE: restarted}
    for (quantity, window), measured_s in zip(windows.items(), times_s, strict=True):
        expected_s = message_s(path, size, window)
        yield LinkCheck(
            kind="link",
            src=sample.src,
            dsts=sample.dsts,
            quantity=quantity,
            expected=expected_s,
            measured=measured_s,
            allowed=TOLERANCE * expected_s,
            passed=abs(measured_s - expected_s) <= TOLERANCE * expected_s,
            num_bytes=size,
        )
