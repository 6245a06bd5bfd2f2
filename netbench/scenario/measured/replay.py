"""Write a scenario file from a network, devices and a workload, to repeat a run on it."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from netbench.scenario.measured.export import yaml_text
from netbench.scenario.model import JITTER, NO_BURSTS, DeviceProfile, Link, Network, Workload
from netbench.units import (
    format_bandwidth,
    format_bytes,
    format_flops,
    format_memory_speed,
    format_percent,
    format_time,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Repetition:
    """A run to repeat.

    comments: lines at the head of the file. node_devices: name of the profile and number of devices
    of each node. notes: comment of a link by indices of its regions. batch_per_replica: of a named
    model. sweep: key -> values.
    """

    name: str
    title: str
    comments: tuple[str, ...]
    network: Network
    node_devices: tuple[tuple[str, int], ...]
    notes: Mapping[tuple[int, int], str]
    devices: Mapping[str, DeviceProfile]
    workload: Workload
    batch_per_replica: int
    backend: str
    sweep: Mapping[str, Sequence[object]]
    pipeline: int = 0
    pipeline_layers: tuple[int, ...] = ()


def repetition_yaml(run: Repetition) -> str:
    """Return the text of a scenario file. Reading it gives exactly the same network."""
    return "\n".join(
        [
            *(f"# {line}".rstrip() for line in run.comments),
            f"name: {run.name}",
            f"title: {yaml_text(run.title)}",
            "",
            f"regions: [{', '.join(map(yaml_text, run.network.regions))}]",
            "",
            "nodes:",
            *_node_lines(run),
            "",
            "network:",
            *_network_lines(run),
            "",
            "devices:",
            *_device_lines(run.devices),
            "",
            *_workload_lines(run),
            "",
            *_sweep_lines(run),
            "",
        ]
    )


def _node_lines(run: Repetition) -> Iterator[str]:
    """Yield a line per group of equal neighbours."""
    network = run.network
    groups: list[tuple[tuple[str, str, int, float], int]] = []
    for node, (device, num_devices) in enumerate(run.node_devices):
        region = network.regions[network.node_regions[node]]
        kind = (region, device, num_devices, network.nic_bps[node])
        if groups and groups[-1][0] == kind:
            groups[-1] = (kind, groups[-1][1] + 1)
        else:
            groups.append((kind, 1))
    for (region, device, num_devices, nic_bps), count in groups:
        words = [f"region: {yaml_text(region)}"]
        words += [f"count: {count}"] if count > 1 else []
        words += [f"device: {yaml_text(device)}"]
        words += [f"devices: {num_devices}"] if num_devices > 1 else []
        words += [f"nic: {format_bandwidth(nic_bps)}"] if math.isfinite(nic_bps) else []
        yield f"  - {{{', '.join(words)}}}"


def _network_lines(run: Repetition) -> Iterator[str]:
    network, size = run.network, range(len(run.network.regions))
    yield f"  sharing: {network.sharing}"
    yield f"  mtu: {network.mtu_bytes}"
    crowded = [a for a in size if network.node_regions.count(a) > 1]
    if crowded:
        yield "  inside:"
        for a in crowded:
            region = yaml_text(network.regions[a])
            yield f"    {region}: {{{link_text(network.links[a][a])}}} # {run.notes[a, a]}"
    if len(size) > 1:
        yield "  links:"
        for a, b in ((a, b) for a in size for b in size if a != b):
            ends = f"from: {yaml_text(network.regions[a])}, to: {yaml_text(network.regions[b])}"
            link = link_text(network.links[a][b])
            yield f"    - {{{ends}, {link}}} # {run.notes[a, b]}"


def link_text(link: Link) -> str:
    """Return all values of a link as the keys of a scenario file; those it does not have, not."""
    words = [f"one_way_delay: {format_time(link.one_way_delay_s)}"]
    words += [f"bandwidth: {format_bandwidth(link.bandwidth_bps)}"] * math.isfinite(
        link.bandwidth_bps
    )
    if link.jitter_s:
        details = [f"deviation: {format_time(link.jitter_s)}"]
        details += [f"distribution: {link.jitter_distribution}"]
        if link.jitter_correlation:
            details += [f"correlation: {format_percent(link.jitter_correlation)}"]
        details += ["reorders: true"] * link.jitter_reorders
        words += [f"jitter: {{{', '.join(details)}}}"]
    if link.bursts != NO_BURSTS:
        bursts = {
            "to_bad": link.bursts.to_bad,
            "to_good": link.bursts.to_good,
            "in_bad": link.bursts.loss_bad,
            "in_good": link.bursts.loss_good,
        }
        details = [f"{key}: {format_percent(value)}" for key, value in bursts.items()]
        words += [f"loss: {{{', '.join(details)}}}"]
    fractions = {"loss": link.loss, "duplication": link.duplication}
    fractions |= {"corruption": link.corruption, "reordering": link.reordering}
    words += [f"{key}: {format_percent(value)}" for key, value in fractions.items() if value]
    words += [f"queue: {link.queue_packets}"] if link.queue_packets else []
    return ", ".join(words)


def _device_lines(devices: Mapping[str, DeviceProfile]) -> Iterator[str]:
    for name, device in devices.items():
        yield f"  {yaml_text(name)}:"
        tables = {
            "flops": _by_key(device.flops, format_flops),
            "optimizer_per_parameter": _by_key(device.optimizer_s_per_parameter, format_time),
            "collective": _by_key(device.collective_s, format_time),
            "layer": _by_key(device.layer_s, format_time),
            "memory_speed": _by_key(device.memory_speed, format_memory_speed),
            "throughput": _by_key(device.throughput, repr),
        }
        yield from (f"    {key}: {text}" for key, text in tables.items() if text)
        if math.isfinite(device.memory_bytes):
            yield f"    memory: {format_bytes(int(device.memory_bytes))}"
        if device.jitter != JITTER:
            yield f"    jitter: {format_percent(device.jitter)}"
        yield f"    source: {yaml_text(device.source)}"


def _by_key(values: Mapping[str, float], text: Callable[[float], str]) -> str:
    known = [f"{key}: {text(value)}" for key, value in values.items() if value]
    return f"{{{', '.join(known)}}}" if known else ""


def _workload_lines(run: Repetition) -> Iterator[str]:
    workload = run.workload
    yield "workload:"
    if workload.model:
        sizes: dict[str, object] = {
            "model": workload.model,
            "batch_per_replica": run.batch_per_replica,
        }
    else:
        sizes = {
            "layers": workload.layers,
            "hidden": workload.hidden,
            "heads": workload.heads,
            "sequence": workload.sequence,
            "recomputation": str(workload.recomputation).lower(),
            "embedding_parameters": workload.embedding_parameters,
            "batch": workload.batch,
        }
    sizes |= {"micro_batch": workload.micro_batch, "dtype": workload.dtype, "backend": run.backend}
    yield from (f"  {key}: {value}" for key, value in sizes.items())


def _sweep_lines(run: Repetition) -> Iterator[str]:
    yield "sweep:"
    if run.pipeline:
        yield f"  pipeline: {run.pipeline}"
    if run.pipeline_layers:
        yield f"  pipeline_layers: [{', '.join(map(str, run.pipeline_layers))}]"
    for key, values in run.sweep.items():
        if values:
            yield f"  {key}: [{', '.join(map(str, values))}]"
