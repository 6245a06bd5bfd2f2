"""DeepSpeed's pipeline engine: 1F1B one message at a time, then ZeRO stage 1.

The replicas of a stage reduce and scatter their gradients, each updates its shard of the
parameters, and all gather the result.
"""

from collections.abc import Sequence

from netbench.trainers.communication.rings import ring_all_gather, ring_reduce_scatter
from netbench.trainers.communication.slices import equal_chunks
from netbench.trainers.layers.stage import TrainedStage
from netbench.trainers.systems.megatron import MegatronRank, update


class DeepspeedPipelineRank(MegatronRank):
    """One rank of a stage of a pipeline."""

    updates_shard = True

    def synchronise(self, chunks: Sequence[TrainedStage]) -> float:
        replicas = self.replicas
        for chunk in chunks:
            shards = equal_chunks(chunk.gradients.numel(), replicas.size)
            mine = chunk.gradients[slice(*shards[replicas.index])]
            ring_reduce_scatter(replicas, mine, chunk.gradients, shards, self.cut)
        optimizer_s = update(chunks)
        for chunk in chunks:
            shards = equal_chunks(chunk.parameters.numel(), replicas.size)
            ring_all_gather(replicas, chunk.parameters, shards, self.cut)
        return optimizer_s
