"""Lines that report an iteration: netbench's own, Megatron-LM's and DeepSpeed's."""

from __future__ import annotations

import math

import pytest

from netbench.errors import TestbedError
from netbench.testbed.ranks.reports import Iteration, Iterations, Report, read_line

MEGATRON = (
    " [2025-04-13 23:41:20] iteration       20/    1000 | consumed samples:          320 | elapsed "
    "time per iteration (ms): 1147.6 | learning rate: 0.000000E+00 | global batch size:    16 | "
    "lm loss: 7.399415E+00 | loss scale: 8388608.0 | number of skipped iterations:  10 |"
)
MEGATRON_SKIPPED = (
    " iteration       10/    1000 | consumed samples:          160 | elapsed time per iteration "
    "(ms): 430.0 | learning rate: 0.000000E+00 | number of nan iterations:   0 |"
)
MEGATRON_OF_2019 = (
    " iteration       10/   5000 | elapsed time per iteration (ms): 512.5 | learning rate 1.5E-04 "
    "| lm loss 6.125000E+00 | loss scale 16384.0 |"
)
DEEPSPEED = (
    "[2024-03-07 15:27:02,646] [INFO] [timer.py:260:stop] epoch=0/micro_step=199/global_step=199, "
    "RunningAvgSamplesPerSec=58.73, CurrSamplesPerSec=61.44, MemAllocated=6.01GB, "
    "MaxMemAllocated=19.52GB"
)
DEEPSPEED_PIPELINE = "steps: 100 loss: 0.0585 iter time (s): 0.186 samples/sec: 53.694"
DEEPSPEED_MOE = (
    "steps: 200 loss: 5.5508 lm loss: 5.5103 moe loss: 0.0405 iter time (s): 0.936 "
    "samples/sec: 136.706"
)


@pytest.mark.parametrize(
    ("line", "seconds", "iteration", "loss"),
    [
        (MEGATRON, 1.1476, 20, 7.399415),
        (MEGATRON_SKIPPED, 0.43, 10, None),
        (MEGATRON_OF_2019, 0.5125, 10, 6.125),
        (DEEPSPEED, 768 / 61.44, 199, None),
        (DEEPSPEED_PIPELINE, 0.186, 100, 0.0585),
        (DEEPSPEED_MOE, 0.936, 200, 5.5508),
        ('{"netbench": "iteration", "iteration_s": 2, "iteration": 3, "loss": 0.5}', 2.0, 3, 0.5),
        ('{"netbench": "iteration", "iteration_s": 2, "loss": null}', 2.0, None, None),
    ],
)
def test_lines_as_the_trainers_print_them_are_read(
    line: str, seconds: float, iteration: int | None, loss: float | None
) -> None:
    """Seconds, the trainer's own number and the loss; a batch of 768."""
    report = read_line(line, batch=768)
    assert report is not None
    assert report.iteration_s == pytest.approx(seconds, rel=1e-12)
    assert report.iteration == iteration
    assert report.loss == loss


def test_phases_are_read() -> None:
    """Seconds by name."""
    line = '{"netbench": "iteration", "iteration_s": 2, "phases": {"forward_s": 1, "rest_s": 0.5}}'
    report = read_line(line, batch=1)
    assert report is not None
    assert report.phases == {"forward_s": 1.0, "rest_s": 0.5}


@pytest.mark.parametrize(
    "line",
    [
        "",
        "loss 4.5",
        "{'loss': 2.075, 'epoch': 0.04}",
        '{"loss": 2.0}',
        "[Rank 0] step=200, skipped=4, lr=[0.00024], mom=[(0.9, 0.999)]",
        "[Rank 0] (after 10 iterations) memory (MB) | allocated: 1464.3 | max allocated: 1464.3",
        '["netbench"]',
    ],
)
def test_other_lines_are_nothing(line: str) -> None:
    """Other output of scripts."""
    assert read_line(line, batch=1) is None


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ('{"netbench": "step"}', "\"netbench\": 'step'"),
        ('{"netbench": "iteration"}', "iteration_s None"),
        ('{"netbench": "iteration", "iteration_s": "1.2"}', "iteration_s '1.2'"),
        ('{"netbench": "iteration", "iteration_s": true}', "iteration_s True"),
        ('{"netbench": "iteration", "iteration_s": 0}', "an iteration of 0.0 s"),
        ('{"netbench": "iteration", "iteration_s": -1}', "an iteration of -1.0 s"),
        ('{"netbench": "iteration", "iteration_s": 1, "loss": "low"}', "loss 'low'"),
        ('{"netbench": "iteration", "iteration_s": 1, "iteration": 1.5}', "iteration 1.5"),
        ('{"netbench": "iteration", "iteration_s": 1, "time": 1}', "the key 'time'"),
        ('{"netbench": "iteration", "iteration_s": 1, "phases": [1]}', "phases [1]"),
        (DEEPSPEED.replace("61.44", "0.0"), "an iteration of nan s"),
    ],
)
def test_a_line_that_means_to_report_and_does_not_is_an_error(line: str, found: str) -> None:
    """The message has the text found and a correct line."""
    with pytest.raises(TestbedError) as caught:
        read_line(line, batch=1)
    assert str(caught.value).startswith(f"found {found} in the line")
    assert '"iteration_s": 1.23' in str(caught.value)


def report(seconds: float, loss: float | None = None, kind: str = "netbench") -> Report:
    return Report(kind=kind, iteration_s=seconds, loss=loss)


def times(finished: list[Iteration]) -> list[float]:
    return [iteration.iteration_s for iteration in finished]


def test_the_slowest_rank_counts_and_losses_are_averaged() -> None:
    """All four report."""
    found = Iterations(4)
    for rank in range(3):
        assert found.add(rank, report(1.0 + rank, loss=float(rank))) == []
    (finished,) = found.add(3, report(2.5, loss=5.0))
    assert finished.iteration_s == 3.0
    assert finished.loss == 2.0


def test_one_rank_may_report_for_all() -> None:
    """Its first waits for its second, by when others would have reported too; then none waits."""
    found = Iterations(4)
    assert found.add(2, report(1.0)) == []
    assert times(found.add(2, report(2.0))) == [1.0, 2.0]
    assert times(found.add(2, report(3.0))) == [3.0]
    assert found.end() == []


def test_a_single_iteration_is_finished_by_the_end() -> None:
    """Nothing says before whether more ranks report."""
    found = Iterations(4)
    assert found.add(0, report(1.0)) == []
    assert times(found.end()) == [1.0]


def test_an_iteration_that_not_all_have_finished_is_not_finished_by_the_end() -> None:
    """Rank 1 died in the second."""
    found = Iterations(2)
    found.add(0, report(1.0))
    assert times(found.add(1, report(1.0))) == [1.0]
    assert found.add(0, report(9.0)) == []
    assert found.end() == []


def test_a_rank_may_be_iterations_ahead() -> None:
    """A rank is waited for as soon as it is known to report."""
    found = Iterations(2)
    assert found.add(0, report(1.0)) == []
    assert times(found.add(0, report(2.0))) == [1.0, 2.0]
    assert found.add(1, report(8.0)) == []  # too late
    assert found.add(0, report(3.0)) == []
    assert found.add(1, report(9.0)) == []
    assert times(found.add(1, report(4.0))) == [4.0]


def test_only_the_first_kind_of_line_counts() -> None:
    """Megatron-DeepSpeed prints Megatron's line and DeepSpeed's for each iteration."""
    found = Iterations(1)
    assert times(found.add(0, report(1.0, kind="DeepSpeed"))) == [1.0]
    assert found.add(0, report(1.1, kind="Megatron-LM")) == []
    assert times(found.add(0, report(2.0, kind="DeepSpeed"))) == [2.0]


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_loss_that_is_no_number_is_an_error(loss: float) -> None:
    """With the script's own number of the iteration, or how many came before."""
    found = Iterations(1)
    found.add(0, report(1.0, loss=1.0))
    with pytest.raises(TestbedError, match=rf"the loss of iteration 1 is {loss}"):
        found.add(0, report(1.0, loss=loss))
    with pytest.raises(TestbedError, match="the loss of iteration 700 is"):
        found.add(0, Report(kind="netbench", iteration_s=1.0, iteration=700, loss=loss))


@pytest.mark.parametrize(
    ("regex", "line", "iteration_s", "loss"),
    [
        (r"'loss': '?(?P<loss>[-+.0-9einfa]+)", "{'loss': 2.5, 'epoch': 0.1}", 0.75, 2.5),
        (r"'loss': '?(?P<loss>[-+.0-9einfa]+)", "{'loss': '1e-2', 'epoch': '1'}", 0.75, 0.01),
        (r"step took (?P<ms>\S+) ms", "12: step took 250 ms", 0.25, None),
        (r"(?P<samples_per_s>\d+) samples/s", "50 samples/s", 2.0, None),
    ],
)
def test_lines_of_any_log_are_reports(
    regex: str, line: str, iteration_s: float, loss: float | None
) -> None:
    """With a time of their own, or the time since the rank's last report."""
    report = read_line(line, 100, regex, elapsed_s=0.75)
    assert report is not None
    assert (report.iteration_s, report.loss) == (iteration_s, loss)
    assert read_line("epoch 1 begins", 100, regex, elapsed_s=0.75) is None
    known = '{"netbench": "iteration", "iteration_s": 1.0}'
    assert read_line(known, 100, regex, elapsed_s=0.75) is None


def test_a_group_that_is_not_a_number_is_an_error() -> None:
    with pytest.raises(TestbedError, match="could not convert"):
        read_line("step took long s", 1, r"took (?P<s>\S+)", elapsed_s=1.0)
    with pytest.raises(TestbedError, match="cannot convert"):
        read_line("step inf", 1, r"step (?P<iteration>\S+)", elapsed_s=1.0)
