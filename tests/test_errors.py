"""What errors have in common."""

from __future__ import annotations

from netbench.errors import PlanError, ScenarioError, TestbedError, UsageError, nearest


def test_bad_input_exits_with_2_and_failures_with_1() -> None:
    """As the command line promises."""
    assert {error.exit_code for error in (UsageError, ScenarioError, PlanError)} == {2}
    assert TestbedError.exit_code == 1


def test_a_misspelled_name_gets_the_nearest() -> None:
    """The best first."""
    assert nearest("case33", ["case1", "case3", "zero3"]).startswith("did you mean case3")


def test_a_name_like_no_other_gets_all_of_them() -> None:
    """So that the reader can choose."""
    assert nearest("xyz", ["case1", "case3"]) == "expected one of case1, case3"
