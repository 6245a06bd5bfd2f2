"""`netbench run SCENARIO --command WORDS`: what goes with a script, and what does not."""

from __future__ import annotations

import shlex

from netbench.errors import UsageError
from netbench.plan.command import PLACEMENTS


def check_script(
    script: str | None, systems: str | None, *, simulated: bool, scale: float | None, others: bool
) -> None:
    """Raises UsageError where a script is missing, cannot be read or has no use.

    systems: as asked for. others: whether more was asked for that only netbench's own trainers do.
    """
    if script is None:
        if named := [name for name in (systems or "").split(",") if name in PLACEMENTS]:
            raise UsageError(
                f"--systems {named[0]} needs the script; add e.g. --command 'python train.py'"
            )
        return
    if simulated:
        raise UsageError("--testbed sim starts no ranks, so no script runs; leave out --command")
    if scale not in (None, 1.0):
        raise UsageError(f"--scale {scale:g} cannot divide what a script sends; leave it out")
    if others:
        raise UsageError(
            "--command runs the script's own layers on its own data; leave out --compute, "
            "--token-file and --all"
        )
    try:
        shlex.split(script)
    except ValueError as error:
        raise UsageError(f"--command {script!r} cannot be split into words: {error}") from error
