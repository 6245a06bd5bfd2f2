"""The published runs of GPT-3 small under tc as plans, with the compute that their LAN cells imply.

The FLOP/s of V100s are fitted on layers of hidden size 2048. Those of hidden size 768 are slower,
and differ between the schedules' programs. So each series has the FLOP/s with which its first cell
on the LAN comes out (`benchmarks/fit_gpt3_small.py`), and all other cells are predictions. What the
programs sent is assumed as `SUMMED_IN` and `FSDP_EMBEDDING` say.
"""

import dataclasses
from dataclasses import dataclass
from functools import cache

from netbench.plan.build import build_plan
from netbench.plan.model import Plan
from netbench.plan.scale import keep_dynamics
from netbench.report.page.published import SEED, load
from netbench.report.page.under_tc.machines import Link, machines, small_workload
from netbench.scenario import Scenario
from netbench.scenario.model import Setting
from netbench.workload.costs import DTYPE_BYTES

TABLE = "gpt3_small_iteration_times"
NAME = "gpt3-small-under-tc"
"""Scenario of the plans."""

DEPTH = 3
"""Machines of a pipeline."""

WARMUP = 1
"""Iterations before the one that counts, in an emulation."""

SERIES = ("schedule", "dtype", "dp_mode")
CELL = (*SERIES, "delay_one_way_ms", "bandwidth_gbps", "micro_batch", "dp")

VARIANTS = {
    ("gpipe", "none"): "dtfm-scheduled",
    ("gpipe", "allreduce"): "dtfm-scheduled-allreduce-by-tensor",
    ("gpipe", "central-ps"): "dtfm-scheduled",
    ("1f1b", "none"): "dtfm-scheduled-1f1b",
    ("zero3-fsdp", "12 nodes"): "fsdp",
}
"""Schedule and mode of data parallelism, as published -> variant."""

TERAFLOPS = {
    ("gpipe", "fp32", 1): 9.822,
    ("gpipe", "fp16", 1): 29.152,
    ("1f1b", "fp32", 1): 7.349,
    ("1f1b", "fp32", 2): 7.437,
    ("1f1b", "fp32", 4): 7.663,
    ("zero3-fsdp", "fp16", 1): 5.310,
    ("zero3-fsdp", "fp16", 2): 6.499,
}
"""Achieved by schedule, dtype and micro-batch. GPipe's series in fp16 have the same cell without
replicas."""


SUMMED_IN = {"allreduce": "fp32"}
"""Mode of data parallelism -> dtype of gradients, where it is not the model's. Not documented. The
cells on the LAN decide: with 4 and 16 replicas 2.53 and 2.82 s were published. In fp32 they take
2.55 and 2.63 s, in fp16 2.41 and 2.45 s."""

FSDP_EMBEDDING = (50257 + 2048) * 768
"""Parameters of FSDP's embeddings, another program: the vocabulary is not documented, GPT-2's is
assumed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SmallCell:
    """A published cell. series: schedule, dtype and mode of data parallelism."""

    series: tuple[str, str, str]
    link: Link
    micro_batch: int
    dp: int
    published_s: float

    @property
    def key(self) -> tuple[str, ...]:
        """The columns `CELL`, as text."""
        return (*self.series, *(f"{value:g}" for value in (*self.link, self.micro_batch, self.dp)))

    @property
    def fixes_compute(self) -> bool:
        """The FLOP/s are those that this cell implies."""
        return self in fixing_cells().values()

    @property
    def is_sharded(self) -> bool:
        """Parameters are sharded over all machines; otherwise there are pipelines."""
        return self.series[0] == "zero3-fsdp"

    def scenario(self) -> Scenario:
        """Return the cell's machines."""
        workload = dataclasses.replace(small_workload(), dtype=self.series[1])
        if not self.is_sharded:
            return machines(NAME, DEPTH * self.dp, self.link, workload, DEPTH)
        workload = dataclasses.replace(workload, embedding_parameters=FSDP_EMBEDDING)
        return machines(NAME, self.dp, self.link, workload, 0)

    def emulated(self) -> Plan:
        """Return the plan of the cell as it is emulated: TCP's dynamics are kept."""
        plan = keep_dynamics(self.plan(), self.scenario())
        return dataclasses.replace(plan, iterations=1 + WARMUP, warmup_iterations=WARMUP)

    def plan(self, teraflops: float | None = None) -> Plan:
        """Return the plan of the cell. teraflops: None = those of its series."""
        schedule, dtype, mode = self.series
        flops = 1e12 * (teraflops or TERAFLOPS[schedule, dtype, self.micro_batch])
        sharded, base = self.is_sharded, self.scenario()
        workload = base.workload
        (device,) = {node.device for node in base.nodes}
        profile = dataclasses.replace(base.devices[device], flops={"default": flops})
        # One micro-step: each micro-batch more takes the same on all networks.
        batch = self.dp * (self.micro_batch if sharded else workload.batch)
        plan = build_plan(
            dataclasses.replace(base, devices={device: profile}),
            VARIANTS[schedule, mode],
            Setting(layers=workload.layers, batch=batch, micro_batch=self.micro_batch, seed=SEED),
        )
        if sharded:  # torch's default: the whole model is one unit
            return dataclasses.replace(plan, units=(workload.layers,))
        factor = DTYPE_BYTES[SUMMED_IN.get(mode, dtype)] // DTYPE_BYTES[dtype]
        stages = (
            dataclasses.replace(stage, gradient_bytes=factor * stage.gradient_bytes)
            for stage in plan.stages
        )
        return dataclasses.replace(plan, stages=tuple(stages))


@cache
def cells() -> tuple[SmallCell, ...]:
    """Return all published cells, in order."""
    return tuple(
        SmallCell(
            series=(str(row.schedule), str(row.dtype), str(row.dp_mode)),
            link=(float(row.delay_one_way_ms), float(row.bandwidth_gbps)),
            micro_batch=int(row.micro_batch),
            dp=int(row.dp),
            published_s=float(row.iteration_s),
        )
        for row in load(TABLE).itertuples()
    )


@cache
def fixing_cells() -> dict[tuple[str, str, int], SmallCell]:
    """Return the first cell of every schedule, dtype and micro-batch, which is on the LAN."""
    found: dict[tuple[str, str, int], SmallCell] = {}
    for cell in cells():
        schedule, dtype, _ = cell.series
        found.setdefault((schedule, dtype, cell.micro_batch), cell)
    return found
