"""The YAML form of a scenario and of a device profile: pydantic models, used at the edge only."""

import math
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    WithJsonSchema,
    model_validator,
)
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import PydanticCustomError

from netbench import limits, units
from netbench.errors import nearest
from netbench.scenario.sharing import SHARING


def _quantity(parse: Callable[[str], float], example: str) -> tuple[Any, ...]:
    """Return annotations of a field that is written as text with a unit."""

    def read(value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise ValueError(f'is {shown(value)}; write e.g. "{example}"')
        return parse(str(value))

    form = {"type": ["string", "number"], "examples": [example]}
    return BeforeValidator(read), WithJsonSchema(form)


def _fraction(example: str, *, zero: str = "", whole: str = "") -> tuple[Any, ...]:
    """Return annotations of a percentage. zero, whole: why 0% and 100% are refused, if they are."""

    def parse(text: str) -> float:
        fraction = units.parse_percent(text)
        if problem := {0.0: zero, 1.0: whole}.get(fraction):
            raise ValueError(f'"{text}" {problem}; write e.g. "{example}"')
        return fraction

    return _quantity(parse, example)


Bandwidth = Annotated[float, *_quantity(units.parse_bandwidth, "1.12Gbit")]
Seconds = Annotated[float, *_quantity(units.parse_time, "11ms")]
Delay = Annotated[float, *_quantity(units.parse_delay, "11ms")]
Bytes = Annotated[int, *_quantity(units.parse_bytes, "16GB")]
Flops = Annotated[float, *_quantity(units.parse_flops, "55TFLOPS")]
Fraction = Annotated[float, *_fraction("1%")]
Loss = Annotated[float, *_fraction("0.1%", whole="loses every packet, so that nothing can cross")]
Corruption = Annotated[
    float, *_fraction("0.1%", whole="damages every packet, so that nothing can cross")
]
Reordering = Annotated[float, *_fraction("1%", whole="lets every packet go ahead of the others")]
Correlation = Annotated[float, *_fraction("25%", whole="gives every packet the delay of the first")]
ToBad = Annotated[float, *_fraction("1%", zero="never leaves the good state")]
ToGood = Annotated[float, *_fraction("30%", zero="never leaves the bad state")]
_whole = _quantity(units.parse_count, "24")
Positive = Annotated[int, *_whole, Field(gt=0)]
Parameters = Annotated[int, *_whole, Field(le=limits.MAX_PARAMETERS)]
Devices = Annotated[int, *_whole, Field(gt=0, le=limits.MAX_DEVICES)]
Layers = Annotated[int, *_whole, Field(gt=0, le=limits.MAX_LAYERS)]
Batch = Annotated[int, *_whole, Field(gt=0, le=limits.MAX_BATCH)]
Seed = Annotated[int, Field(ge=0, le=limits.MAX_SEED)]
Width = Annotated[int, *_whole, Field(gt=0, le=limits.MAX_HIDDEN)]

NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
"""Pattern of names of scenarios and networks, which become folder names and arguments."""


def shown(value: object) -> str:
    """Return a value as one short line, for a message."""
    if isinstance(value, str):
        text = f'"{value}"'
    else:
        text = str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


class Section(BaseModel):
    """A mapping in the file. Errors for unknown and missing keys say what to write instead."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def check_keys(cls, data: Any) -> Any:
        known = {field.alias or name: field for name, field in cls.model_fields.items()}
        if not isinstance(data, Mapping):
            what = "empty" if data is None else shown(data)
            raise _problem(f"is {what}; expected a mapping with {', '.join(known)}")
        for key in data:
            if key not in known:
                raise _problem(f"is an unknown key; {nearest(str(key), known)}", key=str(key))
        for key, field in known.items():
            if field.is_required() and key not in data:
                example = (field.examples or ["..."])[0]
                raise _problem(f'is missing; write e.g. "{key}: {example}"', key=key)
        return data


def _problem(message: str, key: str | None = None) -> PydanticCustomError:
    """Return an error about `key` of the section, or about the section itself."""
    return PydanticCustomError("netbench", "{message}", {"message": message, "key": key})


class JitterForm(Section):
    """Variation of a link's delay from packet to packet."""

    deviation: Delay = Field(examples=["2ms"])
    distribution: Literal["normal", "uniform", "pareto", "paretonormal"] = "normal"
    correlation: Correlation = 0.0
    reorders: bool = False


class BurstsForm(Section):
    """Loss in bursts (Gilbert-Elliott): a link is good or bad and may change at every packet."""

    to_bad: ToBad = Field(examples=["1%"])
    to_good: ToGood = Field(examples=["30%"])
    loss_bad: Fraction = Field(default=1.0, alias="in_bad")
    loss_good: Loss = Field(default=0.0, alias="in_good")

    @model_validator(mode="after")
    def is_worse_in_bad(self) -> "BurstsForm":
        if self.loss_bad <= self.loss_good:
            raise _problem("has in_bad no larger than in_good; expected a larger in_bad")
        return self


TAG = "form:"
"""Prefix of the names of a key's alternatives, which are removed from pydantic's error paths."""


def _in_detail(value: Any) -> str:
    """Return the alternative: a plain value or list, or a mapping with details."""
    return "form:detailed" if isinstance(value, Mapping | BaseModel) else "form:plain"


Jitter = Annotated[
    Annotated[Delay, Tag("form:plain")] | Annotated[JitterForm, Tag("form:detailed")],
    Discriminator(_in_detail),
]
Losses = Annotated[
    Annotated[Loss, Tag("form:plain")] | Annotated[BurstsForm, Tag("form:detailed")],
    Discriminator(_in_detail),
]


class LinkForm(Section):
    """Delay, rate and impairments of a link."""

    one_way_delay: Delay = Field(examples=["11ms"])
    bandwidth: Bandwidth = Field(default=math.inf, examples=["1.12Gbit"])
    jitter: Jitter = Field(default=0.0, examples=["1ms"])
    loss: Losses = Field(default=0.0, examples=["0.1%"])
    duplication: Fraction = Field(default=0.0, examples=["1%"])
    corruption: Corruption = Field(default=0.0, examples=["0.1%"])
    reordering: Reordering = Field(default=0.0, examples=["1%"])
    queue: Annotated[int, *_whole] | None = Field(
        default=None, gt=0, le=limits.MAX_QUEUE, examples=["1000"]
    )


class PairForm(LinkForm):
    """A link `between` two regions, or one way `from` one `to` another."""

    between: list[str] | None = Field(default=None, min_length=2, max_length=2)
    from_: str | None = Field(default=None, alias="from")
    to: str | None = None

    @model_validator(mode="after")
    def has_two_ends(self) -> "PairForm":
        both, one_way = self.between is not None, (self.from_ is not None, self.to is not None)
        if (both and any(one_way)) or (not both and not all(one_way)):
            raise _problem('needs either "between: [A, B]" or "from: A" and "to: B"')
        return self


class MatrixForm(Section):
    """Values by region: a row per source, a column per destination; the diagonal is inside."""

    one_way_delay: list[list[Delay]] = Field(examples=["[[1ms, 11ms], [11ms, 1ms]]"])
    bandwidth: list[list[Bandwidth]] = Field(examples=["[[5Gbit, 1Gbit], [1Gbit, 5Gbit]]"])
    jitter: list[list[Delay]] | None = None
    loss: list[list[Loss]] | None = None


def _inside_form(value: Any) -> str:
    """Return the alternative: one link for all regions, or a mapping from region to link."""
    per_region = isinstance(value, Mapping) and any(
        isinstance(v, Mapping) for key, v in value.items() if key not in LinkForm.model_fields
    )
    return "form:per region" if per_region else "form:all regions"


Links = Annotated[
    Annotated[list[PairForm], Tag("form:plain")] | Annotated[MatrixForm, Tag("form:detailed")],
    Discriminator(_in_detail),
]
Inside = Annotated[
    Annotated[LinkForm, Tag("form:all regions")]
    | Annotated[dict[str, LinkForm], Tag("form:per region")],
    Discriminator(_inside_form),
]


class TcpForm(Section):
    """TCP of the machines, in an emulation that keeps its dynamics. Defaults are Linux's."""

    congestion: Literal["cubic", "reno", "bbr"] = "cubic"
    slow_start_after_idle: bool = True
    initial_window: Annotated[int, Field(ge=1, le=1000)] = 10
    min_rto: Annotated[Seconds, Field(ge=0.001, le=120)] = 0.2
    send_buffer: Annotated[Bytes, Field(ge=1 << 16, le=1 << 30)] = 4 << 20
    receive_buffer: Annotated[Bytes, Field(ge=1 << 16, le=1 << 30)] = 6 << 20


class NetworkForm(Section):
    """Links inside and between regions."""

    sharing: Literal[tuple(SHARING)] = "pair"  # type: ignore[valid-type]  # known at run time
    mtu: int = Field(default=1500, ge=576, le=65535)
    inside: Inside | None = None
    links: Links = Field(default_factory=list)


class NodesForm(Section):
    """A group of equal nodes in one region."""

    region: str = Field(examples=["Ohio"])
    count: Devices = Field(default=1, examples=["32"])
    device: str = Field(examples=["V100"])
    devices: Devices = Field(default=1, examples=["8"])
    nic: Bandwidth = Field(default=math.inf, examples=["25Gbit"])


FlopsForm = Annotated[
    Annotated[Flops, Tag("form:plain")] | Annotated[dict[str, Flops], Tag("form:detailed")],
    Discriminator(_in_detail),
]
SecondsForm = Annotated[
    Annotated[Seconds, Tag("form:plain")] | Annotated[dict[str, Seconds], Tag("form:detailed")],
    Discriminator(_in_detail),
]
"""For all systems, or per system."""


ModelName = Literal["resnet18", "resnet101", "bert-base"]
"""The keys of `scenario.model.NAMED_MODELS`."""


class DeviceForm(Section):
    """A device profile: achieved speeds, for all systems or per system."""

    flops: FlopsForm = Field(default_factory=dict, examples=["55TFLOPS"])
    optimizer_per_parameter: SecondsForm | None = Field(default=None, examples=["0.5ns"])
    collective: SecondsForm | None = Field(default=None, examples=["20ms"])
    layer: SecondsForm | None = Field(default=None, examples=["0.2ms"])
    memory: Bytes | None = Field(default=None, gt=0, examples=["16GB"])
    throughput: dict[str, Annotated[float, Field(gt=0, le=1e12)]] = Field(
        default_factory=dict, examples=["{resnet18: 90.2}"]
    )
    step: Devices = 1
    host_factor: float = Field(default=1.0, gt=0, le=1000)
    source: str = ""

    @model_validator(mode="after")
    def has_a_speed(self) -> "DeviceForm":
        if not self.flops and not self.throughput:
            raise _problem('is missing; write e.g. "flops: 55TFLOPS"', key="flops")
        return self


PROFILE_SUFFIXES = (".yaml", ".yml")


def _device_form(value: Any) -> str:
    if not isinstance(value, str):
        return "form:profile"
    return "form:file" if value.endswith(PROFILE_SUFFIXES) else "form:builtin"


DeviceChoice = Annotated[
    Annotated[Literal["builtin"], Tag("form:builtin")]
    | Annotated[str, Tag("form:file")]
    | Annotated[DeviceForm, Tag("form:profile")],
    Discriminator(_device_form),
]
"""`builtin`, the path of a profile relative to the scenario's folder, or the profile itself."""


class WorkloadForm(Section):
    """A GPT-style model and its batch."""

    layers: Layers = Field(examples=["24"])
    hidden: Width = Field(examples=["2048"])
    heads: Width = Field(examples=["16"])
    sequence: Annotated[int, *_whole] = Field(gt=0, le=limits.MAX_SEQUENCE, examples=["2048"])
    dtype: Literal["fp16", "bf16", "fp32", "fp64"] = "fp16"
    recomputation: bool = True
    micro_batch: Batch = Field(default=1, examples=["1"])
    batch: Batch = Field(examples=["1024"])
    embedding_parameters: Parameters = Field(default=0, examples=["64M"])
    backend: Literal["nccl", "gloo"] = "nccl"

    @model_validator(mode="after")
    def has_heads_of_one_width(self) -> Self:
        if self.hidden % self.heads:
            raise _problem(
                f"is {self.heads}, which does not divide hidden {self.hidden}; choose a divisor",
                "heads",
            )
        return self


GPT_SIZES = (
    "layers", "hidden", "heads", "sequence", "recomputation", "embedding_parameters", "batch",
)  # fmt: skip
"""Keys of `WorkloadForm` that do not apply to a named model."""


class NamedModelForm(Section):
    """A model by name; every replica has a copy."""

    model: ModelName = Field(examples=["resnet18"])
    batch_per_replica: Batch = Field(examples=["128"])
    micro_batch: Batch | None = Field(default=None, examples=["32"])
    dtype: Literal["fp16", "bf16", "fp32", "fp64"] = "fp32"

    @model_validator(mode="before")
    @classmethod
    def has_no_sizes(cls, data: Any) -> Any:
        for key in GPT_SIZES if isinstance(data, Mapping) else ():
            if key in data:
                instead = "use batch_per_replica" if key == "batch" else "remove it"
                raise _problem(f"is for a GPT and does not apply to a named model; {instead}", key)
        return data


class ModelForm(NamedModelForm):
    """A named model as a scenario's workload."""

    backend: Literal["nccl", "gloo"] = "nccl"


class OwnModelForm(Section):
    """A model given by its parameters; devices say how many samples per second they train."""

    model: str = Field(pattern=NAME, examples=["my-model"])
    parameters: Parameters = Field(gt=0, examples=["560M"])
    tensors: Annotated[int, *_whole] = Field(default=300, gt=0, le=limits.MAX_PARAMETERS)
    batch: Batch = Field(examples=["32768"])
    micro_batch: Batch = Field(default=32, examples=["32"])
    sample_bytes: Bytes = Field(default=0, alias="sample", examples=["125kB"])
    dtype: Literal["fp16", "bf16", "fp32", "fp64"] = "fp32"


class OwnWorkloadForm(OwnModelForm):
    """A model given by its parameters, as a scenario's workload."""

    backend: Literal["nccl", "gloo"] = "nccl"


def _model_form(value: Any) -> str:
    is_own = isinstance(value, OwnModelForm) or (
        isinstance(value, Mapping) and "parameters" in value
    )
    return "form:own" if is_own else "form:named"


def _workload_form(value: Any) -> str:
    if _model_form(value) == "form:own":
        return "form:own"
    is_named = isinstance(value, NamedModelForm) or (
        isinstance(value, Mapping) and "model" in value
    )
    return "form:model" if is_named else "form:gpt"


WorkloadChoice = Annotated[
    Annotated[WorkloadForm, Tag("form:gpt")]
    | Annotated[ModelForm, Tag("form:model")]
    | Annotated[OwnWorkloadForm, Tag("form:own")],
    Discriminator(_workload_form),
]
SweepModel = Annotated[
    Annotated[NamedModelForm, Tag("form:named")] | Annotated[OwnModelForm, Tag("form:own")],
    Discriminator(_model_form),
]


class SliceForm(Section):
    """Values to sweep over; each key has a default."""

    layers: list[Layers] | None = Field(default=None, min_length=1)
    batch: list[Batch] | None = Field(default=None, min_length=1)
    variants: list[str] | None = Field(default=None, min_length=1)
    seeds: list[Seed] | None = Field(default=None, min_length=1)
    micro_batch: list[Batch] | None = Field(default=None, min_length=1)
    replicas: list[Devices] | None = Field(default=None, min_length=1)

    @model_validator(mode="after")
    def has_no_value_twice(self) -> Self:
        for name in SliceForm.model_fields:
            values = getattr(self, name) or []
            if again := [value for i, value in enumerate(values) if value in values[:i]]:
                raise _problem(f"has {shown(again[0])} twice; keep one of the two", name)
        return self


class DefaultForm(SliceForm):
    """The default slice; networks, models and peers by name."""

    networks: list[str] | None = Field(default=None, min_length=1)
    models: list[str] | None = Field(default=None, min_length=1)
    peers: list[str] | None = Field(default=None, min_length=1)


class SweepNetworkForm(LinkForm):
    """A network of the sweep: its link replaces every link between nodes."""

    name: str = Field(pattern=NAME, examples=["10ms-1Gbit"])


class PeersForm(Section):
    """Machines that train together: how many of each region."""

    name: str = Field(pattern=NAME, examples=["B-4"])
    nodes: dict[str, Devices] = Field(min_length=1, examples=["{Ohio: 2}"])
    models: list[str] = Field(default_factory=list)
    batch: list[Batch] = Field(default_factory=list)
    variants: list[str] = Field(default_factory=list)


Usd = Annotated[float, Field(ge=0, le=1e6)]


class MachinePriceForm(Section):
    """A machine's price, $ per hour. Without an offer for spot machines, both are equal."""

    spot: Usd | None = Field(default=None, examples=["0.18"])
    on_demand: Usd = Field(examples=["0.57"])


class PlaceForm(Section):
    """Location of a region, and the price of a machine by the type of its devices."""

    provider: str = Field(examples=["GC"])
    continent: str = Field(examples=["NA"])
    machines: dict[str, MachinePriceForm] = Field(
        min_length=1, examples=["{T4: {spot: 0.18, on_demand: 0.57}}"]
    )


class EgressForm(Section):
    """$ per GB sent inside a region, to another of the continent, to another continent, and to or
    from Oceania."""

    zone: Usd = Field(default=0.0, examples=["0.01"])
    region: Usd = Field(examples=["0.01"])
    continent: Usd = Field(examples=["0.08"])
    oceania: Usd | None = Field(default=None, examples=["0.15"])


class PricesForm(Section):
    """Prices of machines by region, of egress by provider, and of loading data."""

    regions: dict[str, PlaceForm] = Field(min_length=1, examples=["{Ohio: {provider: GC}}"])
    egress: dict[str, EgressForm] = Field(
        min_length=1, examples=["{GC: {region: 0.01, continent: 0.08}}"]
    )
    data_loading: Usd = 0.0


class PricesFile(Section):
    """A file of prices."""

    prices: PricesForm


class SweepForm(SliceForm):
    """All values of a scenario's sweep, and the default slice."""

    pipeline: Devices | None = Field(default=None, examples=["8"])
    pipeline_layers: list[Layers] | None = Field(
        default=None, min_length=1, examples=["[4, 3, 3, 2]"]
    )
    gpipe_round: Batch | None = Field(default=None, examples=["128"])
    system_micro_batch: dict[str, Batch] = Field(default_factory=dict, examples=["{megatron: 4}"])
    networks: list[SweepNetworkForm] | None = Field(default=None, min_length=1)
    models: list[SweepModel] | None = Field(default=None, min_length=1)
    peers: list[PeersForm] | None = Field(default=None, min_length=1)
    default: DefaultForm = Field(default=DefaultForm())


class ScenarioForm(Section):
    """A scenario file."""

    name: str | None = Field(default=None, pattern=NAME)
    title: str = ""
    notes: str = ""
    regions: list[str] = Field(
        min_length=1, max_length=limits.MAX_REGIONS, examples=["[Ohio, Virginia]"]
    )
    nodes: list[NodesForm] = Field(
        min_length=1, examples=["[{region: Ohio, count: 4, device: V100}]"]
    )
    network: NetworkForm = Field(examples=["{inside: {one_way_delay: 1ms, bandwidth: 5Gbit}}"])
    tcp: TcpForm = Field(default=TcpForm())
    devices: dict[str, DeviceChoice] = Field(default_factory=dict)
    workload: WorkloadChoice = Field(
        examples=["{layers: 24, hidden: 2048, heads: 16, sequence: 2048, batch: 1024}"]
    )
    sweep: SweepForm = Field(default=SweepForm())
    prices: PricesForm | None = None


class _FileSchema(GenerateJsonSchema):
    """Writes infinite defaults as a file does, because JSON has no infinity."""

    def encode_default(self, dft: Any) -> Any:
        return units.UNLIMITED[-1] if dft == math.inf else super().encode_default(dft)


def scenario_json_schema() -> dict[str, Any]:
    """Return the JSON schema of a scenario file, for editors."""
    schema = ScenarioForm.model_json_schema(by_alias=True, schema_generator=_FileSchema)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
