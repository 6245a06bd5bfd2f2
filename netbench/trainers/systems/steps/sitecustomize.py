"""Time the optimizer steps of a script that does not report its iterations. Standard library only.

`script` puts the folder of this file on the path of the script's Python, which imports a module of
this name at its start. Once the script imports torch, every step of its first
optimizer writes the seconds since the step before, a line each, to the pipe that `PIPE` names. The
script sees neither the path nor the variable, and its output does not change.
"""

import importlib.util
import os
import sys
import time
from contextlib import suppress
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from typing import Any

PIPE = "NETBENCH_STEP_PIPE"
"""Environment variable with the number of the pipe's file descriptor."""

OPTIMIZERS = "torch.optim.optimizer"
"""Module that has `register_optimizer_step_post_hook`."""


class StepTimer:
    """Writes the time of every step of the optimizer that steps first."""

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe
        self._last_s = time.monotonic()
        self._optimizer: int | None = None

    def __call__(self, optimizer: object, args: object, kwargs: object) -> None:
        """Take the end of a step, as torch's hooks do."""
        if self._optimizer is None:
            self._optimizer = id(optimizer)
        if id(optimizer) != self._optimizer:
            return
        now_s = time.monotonic()
        with suppress(OSError):  # nobody reads any more
            os.write(self._pipe, f"{now_s - self._last_s!r}\n".encode())
        self._last_s = now_s


class OptimizerFinder(MetaPathFinder):
    """Finds `OPTIMIZERS` as usual, and hooks `timer` into it once it is imported."""

    def __init__(self, timer: StepTimer) -> None:
        self._timer = timer

    def find_spec(self, fullname: str, path: object, target: object = None) -> ModuleSpec | None:
        if fullname != OPTIMIZERS:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            return spec
        loader: Any = spec.loader
        execute = loader.exec_module

        def execute_and_hook(module: Any) -> None:
            execute(module)
            module.register_optimizer_step_post_hook(self._timer)

        loader.exec_module = execute_and_hook
        return spec


def install() -> None:
    """Time the steps of this process, and leave its environment as if this were not here."""
    pipe = os.environ.pop(PIPE, "")
    folder = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120  # before site-packages
    sys.path[:] = [entry for entry in sys.path if entry != folder]
    kept = [e for e in os.environ.get("PYTHONPATH", "").split(os.pathsep) if e and e != folder]
    os.environ.pop("PYTHONPATH", None)
    if kept:
        os.environ["PYTHONPATH"] = os.pathsep.join(kept)
    if pipe:
        sys.meta_path.insert(0, OptimizerFinder(StepTimer(int(pipe))))
    # The machine may have a sitecustomize of its own. This one cannot leave sys.modules yet.
    hidden = PathFinder.find_spec("sitecustomize", sys.path)
    if hidden is not None and hidden.loader is not None:
        hidden.loader.exec_module(importlib.util.module_from_spec(hidden))


if __name__ == "sitecustomize":
    install()
