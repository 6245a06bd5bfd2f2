"""Record the events of a rank in an iteration that is traced.

A process is one rank, so it has one recorder, `RECORDER`. Kinds of events:

    forward, backward, weight   a pass; of `micro_batch`, of model chunk `chunk`
    optimizer                   the update
    collective, barrier         from the call to the return; each pass of a virtual layer's ring
    send                        from its start until its exchange need not wait for it
    receive                     from the start of its turn until the rank noticed its end

Events of the first three lines are spans. A thread has one span at a time: a span inside another
interrupts it, so a thread's spans never overlap and their seconds add up. Sends and receives go on
beside them. Times are CLOCK_MONOTONIC. Without a trace, nothing is recorded, but the clock is read
as often: in a guest each reading takes 256 ns of virtual time, and a traced iteration is to take as
long.
"""

import functools
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ParamSpec, Protocol, TypeVar

import torch

from netbench.trainers.communication.world import PendingTransfer

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(kw_only=True, slots=True)
class Event:
    """One event of a rank. start_s, end_s: CLOCK_MONOTONIC. details: micro_batch, chunk, name,
    peer (a process), message (its number among those from or to that peer), bytes."""

    kind: str
    start_s: float
    end_s: float
    details: dict[str, Any]

    def to_json(self, origin_s: float) -> list[Any]:
        """[kind, start_s, end_s, details], seconds after `origin_s`."""
        return [self.kind, self.start_s - origin_s, self.end_s - origin_s, self.details]


@dataclass(kw_only=True, slots=True)
class _Span:
    """An open span of a thread. since_s: its start, or the end of its last interruption."""

    kind: str
    details: dict[str, Any]
    since_s: float


class _Spans(threading.local):
    """The open spans of a thread, the innermost last."""

    def __init__(self) -> None:
        self.open: list[_Span] = []


@dataclass(slots=True)
class Recorder:
    """The events of one iteration at a time."""

    _events: list[Event] | None = None
    _on_gpu: bool = False
    _spans: _Spans = field(default_factory=_Spans)
    # A thread per peer: sends to one peer complete in the order of their starts.
    _watchers: dict[object, ThreadPoolExecutor] = field(
        default_factory=lambda: defaultdict(functools.partial(ThreadPoolExecutor, max_workers=1))
    )

    def begin(self, *, on_gpu: bool = False) -> None:
        """Record from now on. on_gpu: a span ends when the GPU has finished its work."""
        self._events, self._on_gpu = [], on_gpu

    def take(self) -> list[Event]:
        """Stop recording once the last send is done. Return all events since `begin`, by start."""
        for watcher in self._watchers.values():
            watcher.shutdown()
        self._watchers.clear()
        events, self._events = self._events or [], None
        self._on_gpu = False
        return sorted(events, key=lambda event: event.start_s)

    def add(self, kind: str, start_s: float, **details: Any) -> None:
        """Add an event that began at `start_s` and ends now."""
        end_s = time.monotonic()
        if self._events is not None:
            self._events.append(Event(kind=kind, start_s=start_s, end_s=end_s, details=details))

    @contextmanager
    def span(self, kind: str, **details: Any) -> Iterator[None]:
        """Record the body of a `with` statement as a span."""
        outer = self._spans.open
        if outer:
            self._close(outer[-1])
        span = _Span(kind=kind, details=details, since_s=self._now())
        outer.append(span)
        try:
            yield
        finally:
            self._close(outer.pop())
            if outer:
                outer[-1].since_s = self._now()

    def _close(self, span: _Span) -> None:
        now_s = self._now()
        if self._events is not None and now_s > span.since_s:
            self._events.append(
                Event(kind=span.kind, start_s=span.since_s, end_s=now_s, details=span.details)
            )

    def _now(self) -> float:
        if self._on_gpu:
            # Not the device: kernels that wait for a message run beside the layers.
            torch.cuda.current_stream().synchronize()
        return time.monotonic()

    def follow(self, work: PendingTransfer, start_s: float, **details: Any) -> None:
        """Record a send that began at `start_s`, once it is done.

        The caller must not wait for it: gloo reports a completion only once.
        """
        if self._events is None:
            return
        key = details["peer"], details.get("tag")
        self._watchers[key].submit(self._finish_send, work, start_s, details)

    def _finish_send(self, work: PendingTransfer, start_s: float, details: dict[str, Any]) -> None:
        work.wait()
        self.add("send", start_s, **details)


RECORDER = Recorder()


def recorded(kind: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a function so that its calls are spans with its name."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            with RECORDER.span(kind, name=function.__name__):
                return function(*args, **kwargs)

        return call

    return decorate


class _Chunk(Protocol):
    chunk: int


S = TypeVar("S", bound=_Chunk)
Pass = Callable[[S, int, torch.Tensor | None], torch.Tensor]


def recorded_pass(kind: str) -> Callable[[Pass[S]], Pass[S]]:
    """Decorate `forward` or `backward` of a stage so that its calls are spans."""

    def decorate(function: Pass[S]) -> Pass[S]:
        @functools.wraps(function)
        def call(stage: S, micro_batch: int, tensor: torch.Tensor | None) -> torch.Tensor:
            with RECORDER.span(kind, micro_batch=micro_batch, chunk=stage.chunk):
                return function(stage, micro_batch, tensor)

        return call

    return decorate
