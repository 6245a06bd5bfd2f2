"""Exit codes of errors, and suggestions for misspelt names."""

from __future__ import annotations

from netbench.errors import PlanError, ScenarioError, TestbedError, UsageError, nearest


def test_bad_input_exits_with_2_and_failures_with_1() -> None:
    """The command line documents these exit codes."""
    assert {error.exit_code for error in (UsageError, ScenarioError, PlanError)} == {2}
    assert TestbedError.exit_code == 1


def test_a_misspelled_name_gets_the_nearest() -> None:
    """The nearest comes first."""
    assert nearest("case33", ["case1", "case3", "zero3"]).startswith("did you mean case3")


def test_a_name_like_no_other_gets_all_of_them() -> None:
    """The message lists the known names."""
    assert nearest("xyz", ["case1", "case3"]) == "expected one of case1, case3"
