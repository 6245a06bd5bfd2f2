"""Describe the impairments of a link in a few words, for tables and pictures."""

from netbench.scenario.model import NO_BURSTS, Link
from netbench.units import format_percent, format_time


def jitter_text(link: Link) -> str:
    """Describe the jitter, e.g. `±2ms pareto`; empty without jitter."""
    if not link.jitter_s:
        return ""
    table = "" if link.jitter_distribution == "normal" else f" {link.jitter_distribution}"
    return f"±{format_time(link.jitter_s, 3)}{table}"


def loss_text(link: Link) -> str:
    """Describe the loss, e.g. `0.1% loss`, `3.2% loss in bursts`; empty without loss."""
    if link.bursts != NO_BURSTS:
        return f"{format_percent(link.bursts.loss, 3)} loss in bursts"
    return f"{format_percent(link.loss, 3)} loss" if link.loss else ""


def rest_lines(link: Link) -> list[str]:
    """Describe everything but delay, rate, jitter and loss, e.g. `1% duplicated`, `queue 1000`."""
    fractions = (
        ("correlated", link.jitter_correlation),
        ("duplicated", link.duplication),
        ("corrupted", link.corruption),
        ("reordered", link.reordering),
    )
    lines = [f"{format_percent(part, 3)} {what}" for what, part in fractions if part]
    lines += ["jitter reorders"] if link.jitter_reorders else []
    return lines + ([f"queue {link.queue_packets}"] if link.queue_packets else [])
