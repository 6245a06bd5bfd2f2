"""Build the workload, a GPT by its sizes or a named model, and the models of a sweep."""

from collections.abc import Sequence
from typing import Literal

from netbench.errors import nearest
from netbench.scenario.model import NAMED_MODELS, PeerSet, Workload
from netbench.scenario.schema import ModelForm, NamedModelForm, OwnModelForm, ScenarioForm
from netbench.scenario.source import SourceFile
from netbench.units import counted

GPT_KEYS = ("pipeline", "layers", "batch", "micro_batch")
MODEL_KEYS = ("models", "replicas")
"""Keys of a sweep that apply to only one kind of workload."""


def build_workload(form: ScenarioForm) -> Workload:
    """Return the workload of a scenario; a named model has the batch of all devices."""
    if isinstance(form.workload, ModelForm):
        num_devices = sum(group.count * group.devices for group in form.nodes)
        return named_workload(form.workload, num_devices)
    if isinstance(form.workload, OwnModelForm):
        return own_workload(form.workload)
    return Workload(**form.workload.model_dump(exclude={"backend"}))


def own_workload(form: OwnModelForm) -> Workload:
    """Return a model that is given by its parameters, with the batch of all devices."""
    return Workload(
        layers=1,
        hidden=0,
        heads=0,
        sequence=0,
        recomputation=False,
        **form.model_dump(include=set(OwnModelForm.model_fields)),
    )


def named_workload(form: NamedModelForm, replicas: int = 1) -> Workload:
    """Return a named model with the batch of this number of replicas."""
    return Workload(
        layers=NAMED_MODELS[form.model],
        hidden=0,
        heads=0,
        sequence=0,
        batch=form.batch_per_replica * replicas,
        micro_batch=form.micro_batch or form.batch_per_replica,
        dtype=form.dtype,
        recomputation=False,
        model=form.model,
    )


def build_models(source: SourceFile, form: ScenarioForm) -> tuple[Workload, ...]:
    """Return the sweep's models, each with the batch of one replica.

    Raises ScenarioError for keys that do not apply to the workload, for repeated models, for models
    of the default slice that the sweep lacks, and for more replicas than devices.
    """
    is_named = isinstance(form.workload, ModelForm | OwnModelForm)
    misplaced = (
        'needs a workload that names a model; write e.g. "model: resnet18" there, or remove it'
    )
    if is_named:
        misplaced = "is for a GPT, but the workload names a model; remove it (use models, replicas)"
    for where, given in (((), form.sweep), (("default",), form.sweep.default)):
        for key in GPT_KEYS if is_named else MODEL_KEYS:
            if getattr(given, key, None) is not None:
                raise source.error(("sweep", *where, key), misplaced)
    models = form.sweep.models or []
    check_names(source, form, "models", [model.model for model in models])
    _check_replicas(source, form)
    return tuple(
        own_workload(model) if isinstance(model, OwnModelForm) else named_workload(model)
        for model in models
    )


def build_peers(source: SourceFile, form: ScenarioForm) -> tuple[PeerSet, ...]:
    """Return the sweep's sets of machines. Raises ScenarioError for a repeated name, for an unknown
    region or model, and for more machines than a region has."""
    peers = form.sweep.peers or []
    check_names(source, form, "peers", [each.name for each in peers])
    known = {form.workload.model} if isinstance(form.workload, ModelForm | OwnModelForm) else set()
    known |= {model.model for model in form.sweep.models or []}
    available = dict.fromkeys(form.regions, 0)
    for group in form.nodes:
        available[group.region] = available.get(group.region, 0) + group.count
    for i, each in enumerate(peers):
        for region, number in each.nodes.items():
            where = ("sweep", "peers", i, "nodes")
            if region not in available:
                raise source.error(
                    where, f'"{region}" is not in regions; {nearest(region, available)}'
                )
            if number > available[region]:
                found = counted(available[region], "node")
                raise source.error(where, f"has {number} of {region}, which has {found}")
        for model in each.models:
            if model not in known:
                hint = nearest(model, known) if known else "remove it: the workload is a GPT"
                raise source.error(("sweep", "peers", i, "models"), f'"{model}" is unknown; {hint}')
    return tuple(
        PeerSet(
            name=each.name,
            nodes=tuple(each.nodes.items()),
            models=tuple(each.models),
            batch=tuple(each.batch),
            variants=tuple(each.variants),
        )
        for each in peers
    )


def check_names(
    source: SourceFile,
    form: ScenarioForm,
    key: Literal["models", "networks", "peers"],
    names: Sequence[str],
) -> None:
    """Raise ScenarioError for a repeated name under `key`, or an unknown one in `default`."""
    for i, name in enumerate(names):
        if name in names[:i]:
            raise source.error(("sweep", key, i), f'"{name}" is given twice; keep one of the two')
    for i, name in enumerate(getattr(form.sweep.default, key) or []):
        if name not in names:
            hint = nearest(name, names) if names else "add it there"
            raise source.error(
                ("sweep", "default", key, i), f'"{name}" is not in sweep.{key}; {hint}'
            )


def _check_replicas(source: SourceFile, form: ScenarioForm) -> None:
    num_devices = sum(group.count * group.devices for group in form.nodes)
    for where, given in (((), form.sweep.replicas), (("default",), form.sweep.default.replicas)):
        for i, number in enumerate(given or []):
            if number > num_devices:
                raise source.error(
                    ("sweep", *where, "replicas", i),
                    f"is {number}, more than the {counted(num_devices, 'device')} of the nodes",
                )
