"""DT-FM: pipelines on a placement, and data parallelism through a central server.

Source: the published release. Pipelines run GPipe in rounds, or 1F1B, which the release does not
have. The ranks of a stage reduce their gradients to the first one, which updates the parameters
with SGD on the CPU and broadcasts them; or they all-reduce, or each serves a shard.
"""

import re
from collections.abc import Iterator

from netbench.plan.model import Layout, Plan
from netbench.systems.base import PIPELINES_FIRST, System, Variant

GPIPE_ROUND = 64
"""Micro-batches of one GPipe round per pipeline. Source: DT-FM's release, B = 512 x rounds."""

DATA_PARALLEL = {"": "reduce-broadcast", "-allreduce": "ring", "-sharded-ps": "sharded-ps"}
"""Option of a name -> `Plan.data_parallel`, for searches."""

BY_TENSOR = {"-allreduce-by-tensor": "by-tensor"}
"""The all-reduce of gradients that are not flattened, as in some published runs. It is never
faster."""


class Dtfm(System):
    """Without -p<P> the depth is the scenario's.

    `scheduled` is the identity placement: if nodes are listed by region, each pipeline is inside
    one region, the manually optimised placement of the published cases 3-5.
    """

    name = "dtfm"
    grammar = "dtfm-(scheduled|random[-nodes])[-p<P>][-1f1b][-allreduce[-by-tensor]|-sharded-ps]"
    pattern = re.compile(
        r"dtfm-(?P<placement>scheduled|random|random-nodes)(-p(?P<pipeline>[1-9]\d*))?(?P<schedule>-1f1b)?"
        r"(?P<data_parallel>-allreduce(-by-tensor)?|-sharded-ps)?",
        re.ASCII,
    )
    examples = ("dtfm-scheduled", "dtfm-random", "dtfm-scheduled-1f1b")
    trainer = "netbench.trainers.systems.dtfm:DtfmRank"
    rank_order = PIPELINES_FIRST
    optimizer = "sgd"
    updates_on_host = True
    repairable = True

    def variant(self, found: re.Match[str]) -> Variant:
        return Variant(
            system=self.name,
            scheduler="identity" if found["placement"] == "scheduled" else found["placement"],
            schedule="1f1b" if found["schedule"] else "gpipe",
            data_parallel=(DATA_PARALLEL | BY_TENSOR)[found["data_parallel"] or ""],
            pipeline=int(found["pipeline"]) if found["pipeline"] else None,
        )

    def pipeline_layouts(self, layout: Layout, layers: int) -> Iterator[str]:
        if layout.tp == 1:
            for schedule in ("", "-1f1b"):
                for kind in DATA_PARALLEL if layout.dp > 1 else ("",):
                    yield f"dtfm-scheduled-p{layout.pp}{schedule}{kind}"

    def num_rounds(self, variant: Variant, num_micro_batches: int, round_size: int = 0) -> int:
        """GPipe rounds of 64 micro-batches, or `round_size`, where they divide, else one of all."""
        rounds, rest = divmod(num_micro_batches, round_size or GPIPE_ROUND)
        return rounds if variant.schedule == "gpipe" and not rest else 1

    def memory_remedies(self, plan: Plan) -> list[str]:
        return ["more stages", *([] if plan.schedule == "1f1b" else ["a variant with -1f1b"])]
