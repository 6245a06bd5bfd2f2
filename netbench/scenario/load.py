"""Find a scenario file and build a `Scenario` from it."""

from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from netbench.errors import ScenarioError, nearest
from netbench.limits import MAX_DEVICES
from netbench.scenario.devices import (
    device_profile,
    list_device_profiles,
    load_device_profile,
    read_device_profile,
)
from netbench.scenario.links import build_links, make_link, region_index
from netbench.scenario.model import (
    NAMED_MODELS,
    DeviceProfile,
    Network,
    Node,
    Scenario,
    Sweep,
    SweepNetwork,
    Tcp,
    Workload,
    host_limits,
)
from netbench.scenario.prices import build_prices
from netbench.scenario.schema import DeviceForm, ScenarioForm
from netbench.scenario.sharing import SHARING
from netbench.scenario.source import NO_FILE, SourceFile, read_source, shown_path
from netbench.scenario.validate import validate
from netbench.scenario.workload import build_models, build_peers, build_workload, check_names
from netbench.units import counted

T = TypeVar("T")

SUFFIXES = (".yaml", ".yml")

DEFAULT_VARIANTS = ("dtfm-scheduled", "dtfm-random", "megatron", "zero3")
DEFAULT_SEEDS = (2022,)
"""Defaults of a scenario without a sweep; 2022 is the first published seed."""

MODEL_VARIANTS = ("ddp",)
"""Default where the workload names a model, which no pipeline trains."""

OWN_VARIANTS = ("hivemind-swarm",)
"""Default where the workload is a model given by its parameters."""


def scenarios_dir() -> Path:
    """Return the folder of included scenarios: in the wheel, or beside the package."""
    package = Path(__file__).parent.parent
    packaged = package / "_data" / "scenarios"
    return packaged if packaged.is_dir() else package.parent / "scenarios"


def list_scenarios() -> tuple[str, ...]:
    """Return the names of the scenarios that netbench includes."""
    return tuple(sorted(path.stem for path in scenarios_dir().glob("*.yaml")))


def load_scenario(name_or_path: str) -> Scenario:
    """Read an included scenario by name, or any scenario by the path of its file.

    Raises ScenarioError naming file, line and key, what was found and what was expected.
    """
    source = read_source(_find(name_or_path))
    return build_scenario(source, validate(source, ScenarioForm))


def scenario_argument(scenario: Scenario) -> str:
    """Return the command-line argument for `scenario`: its name if included, else its file."""
    if not scenario.path:
        return scenario.name
    path = Path(scenario.path)
    return path.stem if path.parent == scenarios_dir() else shown_path(path)


def _find(name_or_path: str) -> Path:
    """Return the path of a scenario; an argument without suffix and folder is a name."""
    path = Path(name_or_path)
    if path.suffix in SUFFIXES or path.name != name_or_path:
        return path
    if name_or_path not in list_scenarios():
        raise ScenarioError(
            f'no scenario "{name_or_path}"; {nearest(name_or_path, list_scenarios())} '
            "(for a file, include its suffix: mine.yaml)"
        )
    return scenarios_dir() / f"{name_or_path}.yaml"


def build_scenario(source: SourceFile, form: ScenarioForm) -> Scenario:
    """Return the scenario of a valid form. Raises ScenarioError where its parts disagree."""
    for i, region in enumerate(form.regions):
        if region in form.regions[:i]:
            raise source.error(("regions", i), f'"{region}" is given twice; keep one of the two')
    nodes = _nodes(source, form)
    network = Network(
        regions=tuple(form.regions),
        links=build_links(source, form),
        node_regions=tuple(form.regions.index(node.region) for node in nodes),
        sharing=form.network.sharing,
        nic_bps=tuple(node.nic_bps for node in nodes),
        host_bps=host_limits(nodes),
        mtu_bytes=form.network.mtu,
    )
    return Scenario(
        name=form.name or source.path.stem,
        title=form.title,
        notes=form.notes.strip(),
        path="" if source.path == NO_FILE else str(source.path),
        network=network,
        nodes=nodes,
        devices=_devices(source, form),
        workload=build_workload(form),
        sweep=_sweep(source, form),
        backend=form.workload.backend,
        tcp=Tcp(
            congestion=form.tcp.congestion,
            slow_start_after_idle=form.tcp.slow_start_after_idle,
            initial_window=form.tcp.initial_window,
            min_rto_s=form.tcp.min_rto,
            send_buffer_bytes=form.tcp.send_buffer,
            receive_buffer_bytes=form.tcp.receive_buffer,
        ),
        prices=build_prices(source, form),
    )


def _nodes(source: SourceFile, form: ScenarioForm) -> tuple[Node, ...]:
    """Return nodes in file order, numbered from 0: node0, node1, ..."""
    nodes: list[Node] = []
    num_devices = 0
    for i, group in enumerate(form.nodes):
        num_devices += group.count * group.devices
        if num_devices > MAX_DEVICES:
            raise source.error(
                ("nodes", i), f"makes {num_devices} devices in all; expected at most {MAX_DEVICES}"
            )
        region_index(source, form.regions, group.region, ("nodes", i, "region"))
        sharing = form.network.sharing
        if SHARING[sharing].has_nics and group.nic == float("inf"):
            raise source.error(
                ("nodes", i), f'has no nic, but sharing is "{sharing}"; write e.g. "nic: 25Gbit"'
            )
        for _ in range(group.count):
            node = Node(
                name=f"node{len(nodes)}",
                region=group.region,
                device=group.device,
                num_devices=group.devices,
                nic_bps=group.nic,
                host_bps=group.host,
            )
            nodes.append(node)
    return tuple(nodes)


def _device_file(source: SourceFile, name: str, path: str) -> DeviceProfile:
    """Read the profile at a path relative to the scenario's folder."""
    file = source.path.parent / path
    if not file.is_file():
        raise source.error(
            ("devices", name),
            f'is "{path}", but {shown_path(file.parent)} has no such file; give the path from the '
            "scenario's folder, or write a profile with netbench calibrate",
        )
    return read_device_profile(name, file)


def _devices(source: SourceFile, form: ScenarioForm) -> dict[str, DeviceProfile]:
    """Return the profiles of the nodes' devices, from `devices` or built in."""
    profiles: dict[str, DeviceProfile] = {}
    for name, device in form.devices.items():
        if isinstance(device, DeviceForm):
            _check_models(source, form, name, device)
            profiles[name] = device_profile(name, device)
        elif device != "builtin":
            profiles[name] = _device_file(source, name, device)
        elif name in list_device_profiles():
            profiles[name] = load_device_profile(name)
        else:
            hint = nearest(name, list_device_profiles())
            raise source.error(("devices", name), f"is not built in; {hint}")
    for i, group in enumerate(form.nodes):
        if group.device not in profiles:
            if group.device not in list_device_profiles():
                known = [*profiles, *list_device_profiles()]
                raise source.error(
                    ("nodes", i, "device"),
                    f'"{group.device}" is neither under devices nor built in; '
                    f"{nearest(group.device, known)}",
                )
            profiles[group.device] = load_device_profile(group.device)
    return profiles


def _check_models(source: SourceFile, form: ScenarioForm, name: str, device: DeviceForm) -> None:
    """Raise ScenarioError if a device has the throughput of a model that the scenario lacks."""
    own = [build_workload(form).model, *(model.model for model in form.sweep.models or [])]
    known = list(dict.fromkeys([*filter(None, own), *NAMED_MODELS]))
    for model in device.throughput:
        if model not in known:
            hint = nearest(model, known)
            raise source.error(("devices", name, "throughput", model), f"is not a model; {hint}")


def _sweep(source: SourceFile, form: ScenarioForm) -> Sweep:
    """Return all settings and the default slice.

    Missing defaults are the first of layers, batches, seeds, networks and micro-batches, the last
    of replicas, and all variants and models.
    """
    whole, default = form.sweep, form.sweep.default
    networks = _sweep_networks(source, form)
    names = tuple(network.name for network in networks)
    micro_batch = _given(whole.micro_batch, ())
    workload, models = build_workload(form), build_models(source, form)
    peers = build_peers(source, form)
    layers = _given(whole.layers, [workload.layers])
    batch = _given(whole.batch, [workload.batch])
    variants = _given(whole.variants, _default_variants(workload))
    replicas = _given(whole.replicas, ())
    seeds = _given(whole.seeds, list(DEFAULT_SEEDS))
    return Sweep(
        layers=layers,
        batch=batch,
        variants=variants,
        seeds=seeds,
        default_layers=_given(default.layers, layers[:1]),
        default_batch=_given(default.batch, batch[:1]),
        default_variants=_given(default.variants, variants),
        default_seeds=_given(default.seeds, seeds[:1]),
        pipeline=whole.pipeline or 0,
        pipeline_layers=_pipeline_layers(source, form, layers),
        networks=networks,
        default_networks=_given(default.networks, names[:1]),
        micro_batch=micro_batch,
        default_micro_batch=_given(default.micro_batch, micro_batch[:1]),
        system_micro_batch=whole.system_micro_batch,
        gpipe_round=whole.gpipe_round or 0,
        maps=_maps(source, form),
        models=models,
        replicas=replicas,
        default_models=_given(default.models, [model.model for model in models]),
        default_replicas=_given(default.replicas, replicas[-1:]),
        peers=peers,
        default_peers=_given(default.peers, [each.name for each in peers]),
    )


def _default_variants(workload: Workload) -> Sequence[str]:
    if workload.parameters:
        return OWN_VARIANTS
    return MODEL_VARIANTS if workload.model else DEFAULT_VARIANTS


def _pipeline_layers(
    source: SourceFile, form: ScenarioForm, layers: tuple[int, ...]
) -> tuple[int, ...]:
    """Return the layers of each stage. Their sum must equal every number of layers in the sweep."""
    stages, where = _given(form.sweep.pipeline_layers, ()), ("sweep", "pipeline_layers")
    if not stages:
        return ()
    if form.sweep.pipeline not in (None, len(stages)):
        raise source.error(
            where,
            f"has {counted(len(stages), 'stage')}, but `pipeline` is {form.sweep.pipeline}; remove "
            "one of them",
        )
    for number in (*layers, *_given(form.sweep.default.layers, ())):
        if number != sum(stages):
            raise source.error(
                where,
                f"has {counted(sum(stages), 'layer')} in all, but the model has {number}; "
                f"write stages with {number} in all, or remove the key to split layers evenly",
            )
    return stages


def _maps(source: SourceFile, form: ScenarioForm) -> dict[str, tuple[int, ...]]:
    """Return the device of every rank, by scheduler, of the maps that the sweep has."""
    by_node: list[range] = []
    num_devices, found = 0, {}
    for group in form.nodes:
        for _ in range(group.count):
            by_node.append(range(num_devices, num_devices + group.devices))
            num_devices += group.devices
    for name, given, count in (
        ("random", form.sweep.maps.random, num_devices),
        ("random-nodes", form.sweep.maps.random_nodes, len(by_node)),
    ):
        if given is None:
            continue
        if sorted(given) != list(range(count)):
            expected = f"every number from 0 to {count - 1} once"
            raise source.error(("sweep", "maps", name), f"is {given}; expected {expected}")
        if name == "random-nodes":
            given = [device for node in given for device in by_node[node]]
        found[name] = tuple(given)
    return found


def _sweep_networks(source: SourceFile, form: ScenarioForm) -> tuple[SweepNetwork, ...]:
    """Return the networks of the sweep, which must include those of the default slice."""
    networks = form.sweep.networks or []
    check_names(source, form, "networks", [network.name for network in networks])
    return tuple(
        SweepNetwork(name=network.name, link=make_link(source, network, ("sweep", "networks", i)))
        for i, network in enumerate(networks)
    )


def _given(values: list[T] | None, otherwise: Sequence[T]) -> tuple[T, ...]:
    return tuple(otherwise if values is None else values)
