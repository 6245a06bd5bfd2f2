"""Fit the constants of `netbench.systems.rounds` to the calibration part of the published runs.

    python -m benchmarks.fit_swarm

Fitted: communication time per round of A-2 to A-8 (T4, one zone), of two A10 from a target batch
size of 16384 on (8192 has irregular rounds), and of WhisperSmall on two T4. RN18 and RN50 count a
third: their rounds of 0.6 to 1.8 s vary by 20%. No experiment that is held out is read.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from benchmarks.multicloud_scenarios import rows
from netbench.plan.build import Choices, build_plans
from netbench.plan.model import Plan
from netbench.scenario.load import load_scenario
from netbench.systems import rounds

SCENARIOS = {"multicloud-a": "T4", "multicloud-whisper": "T4", "multicloud-a10": "A10"}
NOISY = {"RN18": 3.0, "RN50": 3.0}
"""Divisors of the residual of models whose rounds vary."""

SHORT_BATCH = 8192
START = (0.14, 0.45, 5.5e-3, 1.8e-3, 9.7e-9, 15.2e-9, 0.72)


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A calibration run. communication_s: measured, per round. step_s: of a peer."""

    plan: Plan
    device: str
    communication_s: float
    step_s: float
    network_s: float


def samples() -> Iterator[Sample]:
    """Yield the runs that are fitted."""
    measured = {
        (row["experiment"], row["model"], row["tbs"]): float(row["value"])
        for row in rows("a_series")
        if row["metric"] == "comm_time_per_round"
    }
    for name, device in SCENARIOS.items():
        scenario = load_scenario(name)
        for plan in build_plans(scenario, Choices.of(scenario.sweep)):
            model, batch = plan.workload.model, plan.workload.batch
            experiment = plan.peers.removesuffix(f"-{model}")
            found = measured.get((experiment, model, str(batch)))
            waits = batch == SHORT_BATCH or rounds.time_round(plan).wait_s > 0
            if found is None or waits:
                continue
            yield Sample(
                plan=plan,
                device=device,
                communication_s=found,
                step_s=plan.workload.micro_batch / float(rounds.peer_rates(plan)[0]),
                network_s=rounds.lock_step_s(
                    plan, rounds.WIRE_BYTES * plan.workload.parameters / plan.layout.num_ranks
                ),
            )


def predicted_s(constants: NDArray[np.float64], sample: Sample) -> float:
    """Return the communication time per round, as `time_round` has it."""
    group_s, wait, tensor_s, peer_s, parameter_s, exchange_s, factor = constants
    n = sample.plan.layout.num_ranks
    others = (n - 1) / n
    host = factor if sample.device == "A10" else 1.0
    tensors, parameters = sample.plan.workload.tensors, sample.plan.workload.parameters
    cpu_s = host * parameters * (parameter_s + exchange_s * others)
    before_s = group_s + wait * sample.step_s * others + host * tensors * (tensor_s + peer_s * n)
    return float(before_s + rounds.start_s(sample.plan) + rounds.joined_s(cpu_s, sample.network_s))


def main() -> None:
    """Print the constants and the residuals."""
    found = list(samples())

    def residuals(scaled: NDArray[np.float64]) -> list[float]:
        constants = scaled * np.array(START)
        return [
            (predicted_s(constants, each) / each.communication_s - 1)
            / NOISY.get(each.plan.workload.model, 1.0)
            for each in found
        ]

    fit = least_squares(residuals, np.ones(len(START)), bounds=(0, 10))
    constants = fit.x * np.array(START)
    names = ("GROUP_S", "STEP_WAIT", "TENSOR_S", "TENSOR_PEER_S", "PARAMETER_S", "EXCHANGE_S",
             "host_factor of A10")  # fmt: skip
    for name, value in zip(names, constants, strict=True):
        print(f"{name:20} {value:.3g}")
    for each in found:
        error = predicted_s(constants, each) / each.communication_s - 1
        where = f"{each.plan.peers} {each.plan.workload.model} {each.plan.workload.batch}"
        print(f"{where:32} {each.communication_s:7.2f} s {100 * error:+6.1f}%")


if __name__ == "__main__":
    main()
