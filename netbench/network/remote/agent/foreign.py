"""Restore a foreign root qdisc exactly as it was.

Only kinds whose options tc can read as it prints them are accepted. Each is tried beforehand in a
temporary network namespace. Unknown kinds and options are refused.
"""

from __future__ import annotations

import json
from typing import Any

from netbench.network.remote.agent import host
from netbench.network.shaping.batch import DEFAULT_HANDLE

_PLAIN = {
    "pfifo": "limit",
    "bfifo": "limit",
    "fq_codel": "limit flows quantum drop_batch",
    "fq": "limit flow_limit buckets orphan_mask quantum initial_quantum timer_slack",
    "tbf": "mpu linklayer",
}
"""Kind -> options that `tc` reads as `tc -j` prints them."""

_OTHERS = {
    "noqueue": {},
    "pfifo_fast": {"bands": "", "priomap": "", "multiqueue": ""},
    "fq_codel": {
        # The kernel stores units of 1.024 us and tc truncates what it prints; adding 1 us gives
        # the same value again.
        "target": "target {+}us",
        "interval": "interval {+}us",
        "ce_threshold": "ce_threshold {+}us",
        "memory_limit": "memory_limit {}b",
        "ecn": "ecn",
    },
    "fq": {
        "pacing": "nopacing",
        "maxrate": "maxrate {}bps",
        "low_rate_threshold": "low_rate_threshold {}bps",
        "refill_delay": "refill_delay {}us",
        "horizon": "horizon {}us",
        "horizon_drop": "horizon_drop",
        "horizon_cap": "horizon_cap",
    },
    "tbf": {"rate": "rate {}bps", "burst": "burst {size}", "lat": "latency {}us"},
}
"""Kind -> option as `tc -j` prints it -> text that `tc` reads; "" for an option nobody can set."""


def restore_batch(interface: str, qdiscs: list[dict[str, Any]]) -> str:
    """Return `tc -batch` text that makes `qdiscs` again. Raises AgentError if it cannot."""
    root = host.root_of(qdiscs)
    if host.output_of(["tc", "filter", "show", "dev", interface]).strip():
        raise host.AgentError(f"{root['kind']} has filters")
    lines = []
    for qdisc in (root, *(q for q in qdiscs if q is not root and q["handle"] != DEFAULT_HANDLE)):
        where = "root" if qdisc is root else f"parent {qdisc['parent']}"
        if qdisc["kind"] == "mq" and qdisc is root:
            options = "mq"
        elif qdisc is root or root["kind"] == "mq":
            options = qdisc_options(qdisc)
            _try(qdisc, options)
        else:
            raise host.AgentError(f"{root['kind']} has a {qdisc['kind']} qdisc inside")
        verb = "add" if qdisc is root else "replace"
        lines.append(f"qdisc {verb} dev {interface} {where} handle {qdisc['handle']} {options}\n")
    return "".join(lines)


def qdisc_options(qdisc: dict[str, Any]) -> str:
    """Return kind and options of a qdisc as tc reads them. Raises AgentError for unknown ones."""
    kind, options = qdisc["kind"], qdisc.get("options", {})
    if kind == "netem":
        return _netem_options(options)
    plain, others = _PLAIN.get(kind, "").split(), _OTHERS.get(kind, {})
    if kind not in _PLAIN and kind not in _OTHERS:
        raise host.AgentError(f"{kind} may hold classes, filters or options that tc does not print")
    parts = [kind]
    for name, value in options.items():
        if name not in plain and name not in others:
            raise host.AgentError(f"option {name} of {kind} is not known to netbench")
        if template := others.get(name, f"{name} {{}}"):
            parts.append(_filled(template, value))
    if kind == "fq_codel" and "ecn" not in options:
        parts.append("noecn")
    return " ".join(parts)


def _filled(template: str, value: Any) -> str:
    if "{+}" in template:
        return template.replace("{+}", str(value + 1))
    if "{size}" in template:  # "14998b/1", truncated to whole microseconds at the rate
        return template.replace("{size}", f"{int(str(value).split('b')[0]) + 1}b")
    return template.replace("{}", str(value))


def _netem_options(options: dict[str, Any]) -> str:
    parts = ["netem"]
    for name, value in options.items():
        if name == "limit":
            parts.append(f"limit {value}")
        elif name == "delay" and not value["jitter"]:
            parts.append(f"delay {round(value['delay'] * 1e6)}us")
        elif name == "delay":
            raise host.AgentError("netem has jitter, whose distribution tc does not print")
        elif name == "loss-random":
            parts.append(f"loss {_percents(value['loss'], value['correlation'])}")
        elif name == "loss-gemodel":
            fractions = _percents(*(value[key] for key in ("p", "r", "1-h", "1-k")))
            parts.append(f"loss gemodel {fractions}")
        elif name in ("duplicate", "reorder", "corrupt"):
            parts.append(f"{name} {_percents(value[name], value['correlation'])}")
        elif name == "rate":
            rest = " ".join(
                str(value[key]) for key in ("packetoverhead", "cellsize", "celloverhead")
            )
            parts.append(f"rate {value['rate']}bps {rest}")
        elif name == "gap":
            parts += [f"gap {value}"] if value else []
        elif name == "ecn":
            parts += ["ecn"] if value else []
        else:
            raise host.AgentError(f"option {name} of netem is not known to netbench")
    return " ".join(parts)


def _percents(*fractions: float) -> str:
    return " ".join(f"{fraction * 100:.9g}%" for fraction in fractions)


def _try(qdisc: dict[str, Any], options: str) -> None:
    """Make the qdisc in a temporary network namespace and compare what tc prints of both."""
    text = f"qdisc add dev lo root handle {qdisc['handle']} {options}\nqdisc show dev lo\n"
    argv = ["unshare", "--net", "--", "tc", "-j", "-batch", "-"]
    status, stdout, stderr = host.run_tool(argv, text)
    if status:
        why = " ".join(stderr.split())
        raise host.AgentError(f"`{options}` was refused when it was tried out: {why}")
    tried = host.root_of(json.loads(stdout))
    if tried["kind"] != qdisc["kind"] or tried.get("options") != qdisc.get("options"):
        raise host.AgentError(f"`{options}` came out different when it was tried out")
