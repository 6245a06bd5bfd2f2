"""Use of hosts by a run, as a table: cores, bytes sent, memory, GPU memory."""

from collections.abc import Iterable
from statistics import fmean

from netbench.records import HostSample, Run
from netbench.report.numbers import or_dash
from netbench.report.tables.grid import Column, Grid, table_of
from netbench.units import format_bytes

CAPTION = (
    "hosts: mean number of cores that the run kept busy, and mean bytes sent per iteration (with "
    "headers, divided by the scale); most memory in use on the host, and on the fullest of its "
    "GPUs. Without warm-ups."
)


DIGITS = 3
"""Significant digits of bytes."""


def host_samples(run: Run) -> dict[str, list[HostSample]]:
    """Samples of measured iterations by host, in the order of nodes; empty for one machine."""
    samples: dict[str, list[HostSample]] = {}
    for record in run.records:
        for sample in record.hosts if not record.warmup else ():
            samples.setdefault(sample.host, []).append(sample)
    return samples


def hosts_grid(run: Run) -> Grid | None:
    """A row per host; None for a run that has no samples of hosts."""
    samples = host_samples(run)
    columns: list[Column[str]] = [
        ("Host", str),
        ("busy cores", lambda host: _cores(samples[host])),
        ("sent", lambda host: _bytes_text(fmean(s.sent_bytes for s in samples[host]))),
        ("memory", lambda host: _most(s.memory_bytes for s in samples[host])),
        ("GPU memory", lambda host: _most(s.gpu_memory_bytes for s in samples[host])),
    ]
    return table_of(samples, columns) if samples else None


def _cores(samples: Iterable[HostSample]) -> str:
    some = list(samples)
    seconds = sum(sample.seconds for sample in some)
    return f"{sum(sample.cpu_s for sample in some) / seconds:.2f}" if seconds else "-"


def _most(values: Iterable[int | None]) -> str:
    known = [value for value in values if value is not None]
    return or_dash(_bytes_text, max(known, default=None))


def _bytes_text(value: float) -> str:
    return format_bytes(round(value), DIGITS)
