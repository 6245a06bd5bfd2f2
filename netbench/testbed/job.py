"""What sessions have in common: a job file to carry out, and events to say how it goes."""

from __future__ import annotations

import argparse
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from netbench.errors import NetbenchError


class Job(ABC):
    """A job that is carried out inside a session, writing an event per line to `output`."""

    def __init__(self, job: Mapping[str, Any], output: TextIO) -> None:
        self._job = job
        self._output = output

    @abstractmethod
    def run(self) -> None:
        """All of it. Raises NetbenchError; the caller reports it."""

    def emit(self, event: str, **fields: Any) -> None:
        """Write one event line."""
        self._output.write(json.dumps({"event": event, **fields}) + "\n")
        self._output.flush()

    def phase(self, name: str, done: int, total: int) -> None:
        """Say how far step `name` is."""
        self.emit("phase", name=name, done=done, total=total)


def carry_out(kind: type[Job]) -> None:
    """`python -m MODULE JOB EVENTS`: run the job file, write events to a file; an error is one."""
    parser = argparse.ArgumentParser()
    parser.add_argument("job", type=Path)
    parser.add_argument("events", type=Path)
    arguments = parser.parse_args()
    with arguments.events.open("w") as output:
        job = kind(json.loads(arguments.job.read_text()), output)
        try:
            job.run()
        except NetbenchError as error:
            job.emit("error", message=str(error))
