"""DeepSpeed's pipeline engine: 1F1B with blocking transfers, and ZeRO stage 1.

Source: DeepSpeed, `deepspeed/runtime/pipe/{schedule,engine,p2p,module}.py` and
`runtime/zero/stage_1_and_2.py`. Sends and receives run on the stream that computes, one after
another: a micro-batch costs a stage its passes and four transfers. After the last micro-batch the
replicas of a stage reduce and scatter fp16 gradients, each updates its shard of the parameters, and
all gather the result.

Not modelled: the shapes that stages send each other in the first iteration, gradients of tied
layers, and the all-reduces of single numbers (loss, overflow, norm of the gradients).
"""

import re

from netbench.plan.model import Layout, Plan
from netbench.systems.base import System, Variant

ENDS = 2
"""Items of the model beside its layers, which count as much as a layer in the partition: the
embeddings and the head. Source: results/published/README.md."""


class DeepspeedPipeline(System):
    """Without -p<P> the depth is the scenario's."""

    name = "deepspeed-pp"
    grammar = "deepspeed-pp[-p<P>][-random[-nodes]]"
    pattern = re.compile(
        r"deepspeed-pp(-p(?P<pipeline>[1-9]\d*))?(-(?P<placement>random|random-nodes))?", re.ASCII
    )
    examples = ("deepspeed-pp", "deepspeed-pp-random-nodes")
    trainer = "netbench.trainers.systems.deepspeed:DeepspeedPipelineRank"
    costs_as = "megatron"  # the kernels are the same
    blocking = True  # the stream: it goes on when NCCL's buffers hold the rest of a send

    def variant(self, found: re.Match[str]) -> Variant:
        return Variant(
            system=self.name,
            scheduler=found["placement"] or "identity",
            schedule="1f1b-serial",
            data_parallel="zero1",
            pipeline=int(found["pipeline"]) if found["pipeline"] else None,
        )

    def stage_layers(self, layers: int, num_stages: int) -> tuple[int, ...]:
        """`partition_method=uniform`: embeddings, layers and head in parts of equal number, the
        first ones with one more. Evenly if that leaves a stage without a layer."""
        each, more = divmod(layers + ENDS, num_stages)
        items = [each + (stage < more) for stage in range(num_stages)]
        items[0] -= 1
        items[-1] -= 1
        return tuple(items) if min(items) > 0 else ()

    def optimizer_shards(self, layout: Layout) -> int:
        return layout.dp

    def memory_remedies(self, plan: Plan) -> list[str]:
        return ["more stages (-p<P>)"]
