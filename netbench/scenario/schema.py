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
from netbench.scenario.model import JITTER, MAX_JITTER
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
MemorySpeed = Annotated[float, *_quantity(units.parse_memory_speed, "900GB/s")]
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

    deviation: Delay = Field(description="Standard deviation of the delay.", examples=["2ms"])
    distribution: Literal["normal", "uniform", "pareto", "paretonormal"] = Field(
        default="normal", description="Distribution of the delay."
    )
    correlation: Correlation = Field(
        default=0.0, description="Correlation of the delays of successive packets."
    )
    reorders: bool = Field(default=False, description="Let packets overtake each other.")


class BurstsForm(Section):
    """Loss in bursts (Gilbert-Elliott): a link is good or bad and may change at every packet."""

    to_bad: ToBad = Field(
        description="Probability per packet of going from the good to the bad state.",
        examples=["1%"],
    )
    to_good: ToGood = Field(
        description="Probability per packet of going back to the good state.", examples=["30%"]
    )
    loss_bad: Fraction = Field(
        description="Fraction of packets lost in the bad state.", default=1.0, alias="in_bad"
    )
    loss_good: Loss = Field(
        description="Fraction of packets lost in the good state.", default=0.0, alias="in_good"
    )

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


def _has_either_delay(schema: dict[str, Any]) -> None:
    """Require one_way_delay or rtt in the JSON schema of a link."""
    schema["required"] = [key for key in schema["required"] if key != "one_way_delay"]
    schema["oneOf"] = [{"required": ["one_way_delay"]}, {"required": ["rtt"]}]


class LinkForm(Section):
    """Delay, rate and impairments of a link."""

    model_config = ConfigDict(json_schema_extra=_has_either_delay)

    one_way_delay: Delay = Field(
        description="Delay in one direction; `rtt` may take its place.", examples=["11ms"]
    )
    rtt: Delay | None = Field(
        description="Round-trip time, instead of `one_way_delay`, which is half of it.",
        default=None,
        examples=["22ms"],
    )
    bandwidth: Bandwidth = Field(
        description="Rate in one direction, headers included. Without it the link has no limit.",
        default=math.inf,
        examples=["1.12Gbit"],
    )
    jitter: Jitter = Field(
        description="Standard deviation of the delay, or a mapping with its distribution.",
        default=0.0,
        examples=["1ms"],
    )
    loss: Losses = Field(
        description="Fraction of packets lost, independently, or a mapping for loss in bursts.",
        default=0.0,
        examples=["0.1%"],
    )
    duplication: Fraction = Field(
        description="Fraction of packets that arrive twice.", default=0.0, examples=["1%"]
    )
    corruption: Corruption = Field(
        description="Fraction of packets that arrive with one bit flipped.",
        default=0.0,
        examples=["0.1%"],
    )
    reordering: Reordering = Field(
        description="Fraction of packets that go ahead of the others, without delay.",
        default=0.0,
        examples=["1%"],
    )
    queue: Annotated[int, *_whole] | None = Field(
        description="Capacity of the link, packets waiting or in flight. Default: drops none.",
        default=None,
        gt=0,
        le=limits.MAX_QUEUE,
        examples=["1000"],
    )

    @model_validator(mode="before")
    @classmethod
    def has_one_delay(cls, data: Any) -> Any:
        """Replace `rtt` by a delay of half its length."""
        if not isinstance(data, Mapping) or data.get("rtt") is None:
            return data
        if "one_way_delay" in data:
            raise _problem("is given beside one_way_delay; keep one of the two", "rtt")
        try:
            delay_s = units.parse_delay(str(data["rtt"])) / 2
        except ValueError as error:
            raise _problem(str(error), "rtt") from None
        others = {key: value for key, value in data.items() if key != "rtt"}
        return {"one_way_delay": f"{delay_s!r}s", **others}


class PairForm(LinkForm):
    """A link `between` two regions, or one way `from` one `to` another."""

    between: list[str] | None = Field(
        description="The two regions of a link that is equal in both directions.",
        default=None,
        min_length=2,
        max_length=2,
    )
    from_: str | None = Field(
        description="Source region of a link in one direction.", default=None, alias="from"
    )
    to: str | None = Field(
        default=None, description="Destination region of a link in one direction."
    )

    @model_validator(mode="after")
    def has_two_ends(self) -> "PairForm":
        both, one_way = self.between is not None, (self.from_ is not None, self.to is not None)
        if (both and any(one_way)) or (not both and not all(one_way)):
            raise _problem('needs either "between: [A, B]" or "from: A" and "to: B"')
        return self


class MatrixForm(Section):
    """Values by region: a row per source, a column per destination; the diagonal is inside."""

    one_way_delay: list[list[Delay]] = Field(
        description="Delay in one direction, a row per source.",
        examples=["[[1ms, 11ms], [11ms, 1ms]]"],
    )
    bandwidth: list[list[Bandwidth]] = Field(
        description="Rate in one direction, a row per source.",
        examples=["[[5Gbit, 1Gbit], [1Gbit, 5Gbit]]"],
    )
    jitter: list[list[Delay]] | None = Field(
        default=None, description="Standard deviation of the delay."
    )
    loss: list[list[Loss]] | None = Field(
        default=None, description="Fraction of packets lost, independently."
    )


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

    congestion: Literal["cubic", "reno", "bbr"] = Field(
        default="cubic", description="Congestion control; the kernel must have it."
    )
    slow_start_after_idle: bool = Field(
        default=True, description="Whether an idle connection restarts slowly."
    )
    initial_window: Annotated[int, Field(ge=1, le=1000)] = Field(
        default=10, description="First congestion window, segments."
    )
    min_rto: Annotated[Seconds, Field(ge=0.001, le=120)] = Field(
        default=0.2, description="Least retransmission timeout."
    )
    send_buffer: Annotated[Bytes, Field(ge=1 << 16, le=1 << 30)] = Field(
        default=4 << 20, description="Largest send buffer of a socket."
    )
    receive_buffer: Annotated[Bytes, Field(ge=1 << 16, le=1 << 30)] = Field(
        default=6 << 20, description="Largest receive buffer; half of it is the largest window."
    )


class NetworkForm(Section):
    """Links inside and between regions."""

    sharing: Literal[tuple(SHARING)] = Field(  # type: ignore[valid-type]  # known at run time
        default="pair",
        description="Unit that has a rate: each pair of nodes, a class of destinations over equal "
        "links, the NIC of a node, or a trunk between two regions.",
    )
    mtu: int = Field(description="Largest IP packet, bytes.", default=1500, ge=576, le=65535)
    inside: Inside | None = Field(
        default=None,
        description="The link between two nodes of one region, for all regions or by region.",
    )
    links: Links = Field(
        description="Links between regions, as a list or as matrices.", default_factory=list
    )


class NodesForm(Section):
    """A group of equal nodes in one region."""

    region: str = Field(description="Name of the region, one of `regions`.", examples=["Ohio"])
    count: Devices = Field(description="Number of equal nodes.", default=1, examples=["32"])
    device: str = Field(
        description="Name of a device, built in or under `devices`.", examples=["V100"]
    )
    devices: Devices = Field(
        description="Number of devices on each node.", default=1, examples=["8"]
    )
    nic: Bandwidth = Field(
        description="Rate of the NIC of each node, in one direction.",
        default=math.inf,
        examples=["25Gbit"],
    )
    host: Bandwidth = Field(
        description="Payload that the CPUs of each node move through sockets, in and out together.",
        default=math.inf,
        examples=["17.2Gbit"],
    )


FlopsForm = Annotated[
    Annotated[Flops, Tag("form:plain")] | Annotated[dict[str, Flops], Tag("form:detailed")],
    Discriminator(_in_detail),
]
MemorySpeedForm = Annotated[
    Annotated[MemorySpeed, Tag("form:plain")]
    | Annotated[
        dict[Literal["fp16", "bf16", "fp32", "fp64", "default"], MemorySpeed], Tag("form:detailed")
    ],
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

    flops: FlopsForm = Field(
        description="Sustained FLOP/s, for all systems or by system.",
        default_factory=dict,
        examples=["55TFLOPS"],
    )
    optimizer_per_parameter: SecondsForm | None = Field(
        description="Time of the optimizer per parameter.", default=None, examples=["0.5ns"]
    )
    collective: SecondsForm | None = Field(
        description="Time that a host spends on launching a collective.",
        default=None,
        examples=["20ms"],
    )
    layer: SecondsForm | None = Field(
        description="Overhead of a forward pass over a layer.", default=None, examples=["0.2ms"]
    )
    memory_speed: MemorySpeedForm | None = Field(
        description="Speed of memory beside matrix products, for all data types or by type. With "
        "it `flops` are those of matrix products, and layers of any size have their own time.",
        default=None,
        examples=["648GB/s"],
    )
    memory: Bytes | None = Field(
        description="Memory of the device.", default=None, gt=0, examples=["16GB"]
    )
    throughput: dict[str, Annotated[float, Field(gt=0, le=1e12)]] = Field(
        description="Samples or words per second of models by name, on one device.",
        default_factory=dict,
        examples=["{resnet18: 90.2}"],
    )
    step: Devices = Field(
        default=1, description="Micro-batches of one step, where several GPUs train as one device."
    )
    host_factor: float = Field(
        description="Time that the host's CPU takes to average gradients, relative to that of "
        "a Google n1-standard-8.",
        default=1.0,
        gt=0,
        le=1000,
    )
    jitter: Fraction = Field(
        description="Standard deviation of the time of a forward or backward pass, relative to its "
        "mean.",
        default=JITTER,
        ge=0,
        le=MAX_JITTER,
        examples=["0.3%"],
    )
    source: str = Field(default="", description="Origin of the figures.")

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

    layers: Layers = Field(description="Transformer layers.", examples=["24"])
    hidden: Width = Field(description="Hidden size.", examples=["2048"])
    heads: Width = Field(description="Attention heads, a divisor of `hidden`.", examples=["16"])
    sequence: Annotated[int, *_whole] = Field(
        description="Tokens in a sequence.", gt=0, le=limits.MAX_SEQUENCE, examples=["2048"]
    )
    dtype: Literal["fp16", "bf16", "fp32", "fp64"] = Field(
        default="fp16", description="Type of weights, activations and gradients."
    )
    recomputation: bool = Field(
        default=True, description="Compute activations again in the backward pass."
    )
    micro_batch: Batch = Field(description="Sequences in a micro-batch.", default=1, examples=["1"])
    batch: Batch = Field(description="Sequences in a global batch.", examples=["1024"])
    embedding_parameters: Parameters = Field(
        description="Parameters outside the layers, on the first stage.",
        default=0,
        examples=["64M"],
    )
    backend: Literal["nccl", "gloo"] = Field(
        default="nccl", description="Library that carries collectives and transfers."
    )

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

    model: ModelName = Field(description="Name of the model.", examples=["resnet18"])
    batch_per_replica: Batch = Field(
        description="Samples per iteration on each device.", examples=["128"]
    )
    micro_batch: Batch | None = Field(
        description="Samples in a micro-batch. Without it, the batch of a replica.",
        default=None,
        examples=["32"],
    )
    dtype: Literal["fp16", "bf16", "fp32", "fp64"] = Field(
        default="fp32", description="Type of weights, activations and gradients."
    )

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

    backend: Literal["nccl", "gloo"] = Field(
        default="nccl", description="Library that carries collectives and transfers."
    )


class OwnModelForm(Section):
    """A model given by its parameters; devices say how many samples per second they train."""

    model: str = Field(description="Name of the model.", pattern=NAME, examples=["my-model"])
    parameters: Parameters = Field(description="Number of parameters.", gt=0, examples=["560M"])
    tensors: Annotated[int, *_whole] = Field(
        description="Number of tensors.", default=300, gt=0, le=limits.MAX_PARAMETERS
    )
    batch: Batch = Field(description="Samples between two averagings.", examples=["32768"])
    micro_batch: Batch = Field(
        description="Samples of a step of one peer.", default=32, examples=["32"]
    )
    sample_bytes: Bytes = Field(
        description="Bytes of a sample that a peer loads.",
        default=0,
        alias="sample",
        examples=["125kB"],
    )
    dtype: Literal["fp16", "bf16", "fp32", "fp64"] = Field(
        default="fp32", description="Number type of the parameters."
    )


class OwnWorkloadForm(OwnModelForm):
    """A model given by its parameters, as a scenario's workload."""

    backend: Literal["nccl", "gloo"] = Field(
        default="nccl", description="Library that carries collectives and transfers."
    )


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

    layers: list[Layers] | None = Field(
        description="Numbers of layers.", default=None, min_length=1
    )
    batch: list[Batch] | None = Field(
        description="Global batch sizes, in sequences.", default=None, min_length=1
    )
    variants: list[str] | None = Field(
        description="Names of training systems.", default=None, min_length=1
    )
    seeds: list[Seed] | None = Field(
        description="Seeds of random placements.", default=None, min_length=1
    )
    micro_batch: list[Batch] | None = Field(
        description="Micro-batch sizes, in sequences.", default=None, min_length=1
    )
    replicas: list[Devices] | None = Field(
        description="Numbers of devices that train a named model.", default=None, min_length=1
    )

    @model_validator(mode="after")
    def has_no_value_twice(self) -> Self:
        for name in SliceForm.model_fields:
            values = getattr(self, name) or []
            if again := [value for i, value in enumerate(values) if value in values[:i]]:
                raise _problem(f"has {shown(again[0])} twice; keep one of the two", name)
        return self


class DefaultForm(SliceForm):
    """The default slice; networks, models and peers by name."""

    networks: list[str] | None = Field(
        description="Names of networks of the sweep.", default=None, min_length=1
    )
    models: list[str] | None = Field(
        description="Names of models of the sweep.", default=None, min_length=1
    )
    peers: list[str] | None = Field(
        description="Names of sets of machines of the sweep.", default=None, min_length=1
    )


class SweepNetworkForm(LinkForm):
    """A network of the sweep: its link replaces every link between nodes."""

    name: str = Field(
        description="Name of the network, for `--networks`.", pattern=NAME, examples=["10ms-1Gbit"]
    )


class PeersForm(Section):
    """Machines that train together: how many of each region."""

    name: str = Field(description="Name of the set, for `--peers`.", pattern=NAME, examples=["B-4"])
    nodes: dict[str, Devices] = Field(
        description="Number of machines by region.", min_length=1, examples=["{Ohio: 2}"]
    )
    models: list[str] = Field(
        description="Models that the set trains. Without it, all.", default_factory=list
    )
    batch: list[Batch] = Field(
        description="Batches of the set. Without it, those of the sweep.", default_factory=list
    )
    variants: list[str] = Field(
        description="Systems of the set. Without it, those of the sweep.", default_factory=list
    )


Usd = Annotated[float, Field(ge=0, le=1e6)]


class MachinePriceForm(Section):
    """A machine's price, $ per hour. Without an offer for spot machines, both are equal."""

    spot: Usd | None = Field(
        description="$ per hour on the spot market.", default=None, examples=["0.18"]
    )
    on_demand: Usd = Field(description="$ per hour on demand.", examples=["0.57"])


class PlaceForm(Section):
    """Location of a region, and the price of a machine by the type of its devices."""

    provider: str = Field(description="Provider, a key of `egress`.", examples=["GC"])
    continent: str = Field(description="Continent, which selects egress prices.", examples=["NA"])
    machines: dict[str, MachinePriceForm] = Field(
        description="Prices of machines by the type of their devices.",
        min_length=1,
        examples=["{T4: {spot: 0.18, on_demand: 0.57}}"],
    )


class EgressForm(Section):
    """$ per GB sent inside a region, to another of the continent, to another continent, and to or
    from Oceania."""

    zone: Usd = Field(description="$ per GB inside a region.", default=0.0, examples=["0.01"])
    region: Usd = Field(
        description="$ per GB to another region of the continent.", examples=["0.01"]
    )
    continent: Usd = Field(description="$ per GB to another continent.", examples=["0.08"])
    oceania: Usd | None = Field(
        description="$ per GB to or from Oceania. Without it, as `continent`.",
        default=None,
        examples=["0.15"],
    )


class PricesForm(Section):
    """Prices of machines by region, of egress by provider, and of loading data."""

    regions: dict[str, PlaceForm] = Field(
        description="Location and prices by region.",
        min_length=1,
        examples=["{Ohio: {provider: GC}}"],
    )
    egress: dict[str, EgressForm] = Field(
        description="Prices of traffic by provider.",
        min_length=1,
        examples=["{GC: {region: 0.01, continent: 0.08}}"],
    )
    data_loading: Usd = Field(default=0.0, description="$ per GB of training data.")


class PricesFile(Section):
    """A file of prices."""

    prices: PricesForm


class MapsForm(Section):
    """Placements of published runs, whatever the seed."""

    random: list[int] | None = Field(
        description="Device of every rank, all devices once.",
        default=None,
        examples=["[0, 3, 1, 2]"],
    )
    random_nodes: list[int] | None = Field(
        alias="random-nodes",
        description="Node of consecutive ranks, all nodes once.",
        default=None,
        examples=["[0, 3, 1, 2]"],
    )


class SweepForm(SliceForm):
    """All values of a scenario's sweep, and the default slice."""

    pipeline: Devices | None = Field(
        description="Stages of a pipeline. Default: the largest up to 8 that divides evenly.",
        default=None,
        examples=["8"],
    )
    pipeline_layers: list[Layers] | None = Field(
        description="Layers of each stage. Without it, layers are split evenly.",
        default=None,
        min_length=1,
        examples=["[4, 3, 3, 2]"],
    )
    networks: list[SweepNetworkForm] | None = Field(
        description="Networks that replace every link between nodes, one at a time.",
        default=None,
        min_length=1,
    )
    models: list[SweepModel] | None = Field(
        description="Models by name, or by their parameters.", default=None, min_length=1
    )
    peers: list[PeersForm] | None = Field(
        description="Sets of machines that train together.", default=None, min_length=1
    )
    gpipe_round: Batch | None = Field(
        description="Micro-batches of a GPipe round per pipeline. Default: 64.",
        default=None,
        examples=["128"],
    )
    maps: MapsForm = Field(
        description="Placements of `random` and `random-nodes`, whatever the seed.",
        default=MapsForm(),
    )
    system_micro_batch: dict[str, Batch] = Field(
        description="Micro-batch by name of the systems that differ from the workload.",
        default_factory=dict,
        examples=["{megatron: 4}"],
    )
    default: DefaultForm = Field(
        description="The slice that `netbench run` runs without `--all`.", default=DefaultForm()
    )


class ScenarioForm(Section):
    """A scenario file."""

    name: str | None = Field(
        description="Name of the scenario. Without it, the name of the file.",
        default=None,
        pattern=NAME,
    )
    title: str = Field(default="", description="One line about the scenario.")
    notes: str = Field(default="", description="Sources and remarks.")
    regions: list[str] = Field(
        description="Names of the regions.",
        min_length=1,
        max_length=limits.MAX_REGIONS,
        examples=["[Ohio, Virginia]"],
    )
    nodes: list[NodesForm] = Field(
        description="Groups of equal nodes, in the order of their numbers.",
        min_length=1,
        examples=["[{region: Ohio, count: 4, device: V100}]"],
    )
    network: NetworkForm = Field(
        description="Links, and the unit that has a rate.",
        examples=["{inside: {one_way_delay: 1ms, bandwidth: 5Gbit}}"],
    )
    tcp: TcpForm = Field(
        description="TCP of the machines, where an emulation keeps its dynamics.", default=TcpForm()
    )
    devices: dict[str, DeviceChoice] = Field(
        description="Devices by name: a profile, the path of one, or `builtin`.",
        default_factory=dict,
    )
    workload: WorkloadChoice = Field(
        description="Trained model: a GPT by its sizes, or a model by name.",
        examples=["{layers: 24, hidden: 2048, heads: 16, sequence: 2048, batch: 1024}"],
    )
    sweep: SweepForm = Field(
        description="Settings to run, and the default slice.", default=SweepForm()
    )
    prices: PricesForm | None = Field(
        description="Prices of machines, traffic and data loading.", default=None
    )


class _FileSchema(GenerateJsonSchema):
    """Writes infinite defaults as a file does, because JSON has no infinity."""

    def encode_default(self, dft: Any) -> Any:
        return units.UNLIMITED[-1] if dft == math.inf else super().encode_default(dft)


def scenario_json_schema() -> dict[str, Any]:
    """Return the JSON schema of a scenario file, for editors."""
    schema = ScenarioForm.model_json_schema(by_alias=True, schema_generator=_FileSchema)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
