"""Models by name: their blocks with parameters and work, in the order of the forward pass."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from netbench.scenario.model import Workload


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """Consecutive layers. parameters: count. forward_flops: per sample; a multiply-add counts as
    two, normalisations and activations as none."""

    name: str
    parameters: int
    forward_flops: float


@dataclass(frozen=True, kw_only=True, slots=True)
class NamedModel:
    """A model. unit: what throughput counts, of which a sample has `units_per_sample`."""

    unit: str
    units_per_sample: int
    blocks: tuple[Block, ...]

    def rate(self, throughput: float) -> str:
        """E.g. `90.2 images/s`."""
        return f"{throughput:g} {self.unit}/s"

    @property
    def parameters(self) -> int:
        return sum(block.parameters for block in self.blocks)

    @property
    def forward_flops(self) -> float:
        """FLOPs of one sample."""
        return sum(block.forward_flops for block in self.blocks)


IMAGE_SIDE, IMAGE_CLASSES = 224, 1000
"""Pixels, classes: ImageNet's. Source: He et al., "Deep Residual Learning" (2015), section 3.4."""

WORDS, VOCABULARY, POSITIONS, SENTENCE_CLASSES = 128, 30_522, 512, 2
"""Sizes of a BERT that classifies sentences. Sources: results/published/dp_scaling.csv ("len 128");
Devlin et al., "BERT" (2019), and the vocabulary of its release."""


def _convolution(inputs: int, outputs: int, kernel: int, side: int) -> tuple[int, float]:
    """Parameters, with the normalisation after it, and FLOPs for an output of side x side."""
    weights = inputs * outputs * kernel**2
    return weights + 2 * outputs, 2.0 * weights * side**2


def _block(name: str, parts: Sequence[tuple[int, float]]) -> Block:
    return Block(
        name=name,
        parameters=sum(parameters for parameters, _ in parts),
        forward_flops=sum(flops for _, flops in parts),
    )


def _resnet(depths: Sequence[int], widths: Sequence[int], *, bottleneck: bool) -> NamedModel:
    """Source: He et al. 2015, table 1; bottlenecks stride in their 3 x 3, as torch's models do."""
    return NamedModel(
        unit="images",
        units_per_sample=1,
        blocks=tuple(_resnet_blocks(depths, widths, bottleneck=bottleneck)),
    )


def _resnet_blocks(
    depths: Sequence[int], widths: Sequence[int], *, bottleneck: bool
) -> Iterator[Block]:
    inputs, side = 64, IMAGE_SIDE // 2
    yield _block("stem", [_convolution(3, inputs, 7, side)])
    side //= 2  # pooled
    for stage, (depth, width) in enumerate(zip(depths, widths, strict=True)):
        for index in range(depth):
            before = side
            if stage and not index:
                side //= 2
            inner = width // 4 if bottleneck else width
            parts = [_convolution(inner, inner, 3, side)]
            if bottleneck:
                parts += [
                    _convolution(inputs, inner, 1, before),
                    _convolution(inner, width, 1, side),
                ]
            else:
                parts += [_convolution(inputs, inner, 3, side)]
            if inputs != width or side != before:
                parts += [_convolution(inputs, width, 1, side)]  # the shortcut
            yield _block(f"stage {stage} block {index}", parts)
            inputs = width
    weights = inputs * IMAGE_CLASSES
    yield Block(name="head", parameters=weights + IMAGE_CLASSES, forward_flops=2.0 * weights)


def _bert(layers: int, hidden: int) -> NamedModel:
    """Source: Devlin et al. 2019, section 3; a pooler and a classifier on the first word."""
    tables = (VOCABULARY + POSITIONS + 2) * hidden  # words, positions, which of two sentences
    # Of a transformer layer, as in `costs`: 24 s h^2 (1 + s / 6h) for s words.
    layer = (12 * hidden**2 + 13 * hidden, 24.0 * WORDS * hidden**2 + 4.0 * WORDS**2 * hidden)
    pooler = (hidden**2 + hidden, 2.0 * hidden**2)
    head = ((hidden + 1) * SENTENCE_CLASSES, 2.0 * hidden * SENTENCE_CLASSES)
    return NamedModel(
        unit="words",
        units_per_sample=WORDS,
        blocks=(
            Block(name="embeddings", parameters=tables + 2 * hidden, forward_flops=0.0),
            *(_block(f"layer {index}", [layer]) for index in range(layers)),
            _block("head", [pooler, head]),
        ),
    )


MODELS: dict[str, NamedModel] = {
    "resnet18": _resnet((2, 2, 2, 2), (64, 128, 256, 512), bottleneck=False),
    "resnet101": _resnet((3, 4, 23, 3), (256, 512, 1024, 2048), bottleneck=True),
    "bert-base": _bert(12, 768),
}
"""By the name in a workload (`scenario.model.NAMED_MODELS`)."""


def model_of(workload: Workload) -> NamedModel:
    """Return the model of a workload that is not a GPT. The work of a model given by its parameters
    is not known: 0 FLOPs."""
    if not workload.parameters:
        return MODELS[workload.model]
    block = Block(name=workload.model, parameters=workload.parameters, forward_flops=0.0)
    return NamedModel(unit="samples", units_per_sample=1, blocks=(block,))
