"""What is trained: a GPT by its sizes, or models by name; and the part of a sweep that fits it."""

from __future__ import annotations

from collections.abc import Sequence

from netbench.errors import nearest
from netbench.scenario.model import NAMED_MODELS, Workload
from netbench.scenario.schema import ModelForm, NamedModelForm, ScenarioForm
from netbench.scenario.source import Source
from netbench.units import counted

OF_A_GPT = ("pipeline", "layers", "batch", "micro_batch")
OF_MODELS = ("models", "replicas")
"""Keys of a sweep that only one kind of workload has."""


def build_workload(form: ScenarioForm) -> Workload:
    """The workload of a scenario; of a named model, with the batch of all its devices."""
    if isinstance(form.workload, ModelForm):
        num_devices = sum(group.count * group.devices for group in form.nodes)
        return named_workload(form.workload, num_devices)
    return Workload(**form.workload.model_dump(exclude={"backend"}))


def named_workload(form: NamedModelForm, replicas: int = 1) -> Workload:
    """A model by name, with the batch of so many replicas."""
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


def build_models(source: Source, form: ScenarioForm) -> tuple[Workload, ...]:
    """The sweep's models, each with the batch of one replica; none, where it names none.

    Raises ScenarioError for keys of a sweep that do not go with the workload, and for models and
    replicas that are given twice, of the default slice but not of the sweep, or more than there is.
    """
    is_named = isinstance(form.workload, ModelForm)
    for where, given in (((), form.sweep), (("default",), form.sweep.default)):
        for key in OF_A_GPT if is_named else OF_MODELS:
            if getattr(given, key, None) is not None:
                raise source.error(("sweep", *where, key), _misplaced(is_named))
    models = form.sweep.models or []
    _check_names(source, form, [model.model for model in models])
    _check_replicas(source, form)
    return tuple(named_workload(model) for model in models)


def _misplaced(is_named: bool) -> str:
    if is_named:
        return "is for a GPT, and the workload names a model; leave it out (models, replicas)"
    return (
        'needs a workload that names a model; write e.g. "model: resnet18" there, or leave it out'
    )


def _check_names(source: Source, form: ScenarioForm, names: Sequence[str]) -> None:
    for i, name in enumerate(names):
        if name in names[:i]:
            raise source.error(
                ("sweep", "models", i, "model"), f'"{name}" is given twice; keep one of the two'
            )
    for i, name in enumerate(form.sweep.default.models or []):
        if name not in names:
            hint = nearest(name, names) if names else "add it there"
            raise source.error(
                ("sweep", "default", "models", i), f'"{name}" is not in sweep.models; {hint}'
            )


def _check_replicas(source: Source, form: ScenarioForm) -> None:
    num_devices = sum(group.count * group.devices for group in form.nodes)
    for where, given in (((), form.sweep.replicas), (("default",), form.sweep.default.replicas)):
        for i, number in enumerate(given or []):
            if number > num_devices:
                raise source.error(
                    ("sweep", *where, "replicas", i),
                    f"is {number}, more than the {counted(num_devices, 'device')} of the nodes",
                )
