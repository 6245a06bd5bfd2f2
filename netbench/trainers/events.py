"""What a rank does and when, recorded while an iteration is asked to be traced.

A process is one rank, so it has one recorder, `RECORDER`. Kinds:

    forward, backward, weight   a pass; of `micro_batch`, of model chunk `chunk`
    optimizer                   the update
    collective, barrier         from the call to the return
    send                        from its start until the kernel has taken its last byte
    receive                     from when its turn came until the rank took note of it

The first three lines are spans: of one thread, one at a time. A span inside another interrupts it,
so that a thread's spans never overlap and their seconds add up. Sends and receives go on beside
them. Times are CLOCK_MONOTONIC. Nothing is recorded, and next to nothing spent, unless asked for.
"""

from __future__ import annotations

import functools
import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, ParamSpec, Protocol, TypeVar

import torch

from netbench.trainers.world import Work

P = ParamSpec("P")
R = TypeVar("R")

NOTHING = nullcontext()


@dataclass(kw_only=True, slots=True)
class Event:
    """One thing a rank did. start_s, end_s: CLOCK_MONOTONIC. details: micro_batch, chunk, name,
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
    """One that is open in a thread. since_s: when it began, or went on after an interruption."""

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
    _watchers: dict[object, _Watcher] = field(default_factory=dict)

    @property
    def is_on(self) -> bool:
        return self._events is not None

    def begin(self, *, on_gpu: bool = False) -> None:
        """Record from now on. on_gpu: a span ends when the GPU has done what it was given."""
        self._events, self._on_gpu = [], on_gpu

    def take(self) -> list[Event]:
        """Stop recording: all since `begin`, by start, once the last send is done."""
        for watcher in self._watchers.values():
            watcher.finish()
        self._watchers.clear()
        events, self._events = self._events or [], None
        return sorted(events, key=lambda event: event.start_s)

    def add(self, kind: str, start_s: float, **details: Any) -> None:
        """Something that began at `start_s` and ends now."""
        if self._events is not None:
            self._events.append(
                Event(kind=kind, start_s=start_s, end_s=time.monotonic(), details=details)
            )

    def span(self, kind: str, **details: Any) -> AbstractContextManager[None]:
        """What is done inside `with`."""
        return NOTHING if self._events is None else self._record(kind, details)

    @contextmanager
    def _record(self, kind: str, details: dict[str, Any]) -> Iterator[None]:
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
            torch.cuda.synchronize()
        return time.monotonic()

    def follow(self, work: Work, start_s: float, **details: Any) -> None:
        """A send that began at `start_s`: note when it is done. Nobody else may wait for it: gloo
        tells of a completion once."""
        if self._events is None:
            return
        key = details["peer"], details.get("tag")
        if key not in self._watchers:
            self._watchers[key] = _Watcher(self)
        self._watchers[key].follow(work, start_s, details)


class _Watcher:
    """Waits for the sends to one peer, which are done in the order in which they were started."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._sends: queue.SimpleQueue[tuple[Work, float, dict[str, Any]] | None] = (
            queue.SimpleQueue()
        )
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def follow(self, work: Work, start_s: float, details: dict[str, Any]) -> None:
        """Note when this one is done."""
        self._sends.put((work, start_s, details))

    def finish(self) -> None:
        """Block until all are."""
        self._sends.put(None)
        self._thread.join()

    def _watch(self) -> None:
        while (item := self._sends.get()) is not None:
            work, start_s, details = item
            work.wait()
            self._recorder.add("send", start_s, **details)


RECORDER = Recorder()


def recorded(kind: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorates a function whose calls are spans; its name goes with them."""

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
    """Decorates `forward` and `backward` of a stage."""

    def decorate(function: Pass[S]) -> Pass[S]:
        @functools.wraps(function)
        def call(stage: S, micro_batch: int, tensor: torch.Tensor | None) -> torch.Tensor:
            with RECORDER.span(kind, micro_batch=micro_batch, chunk=stage.chunk):
                return function(stage, micro_batch, tensor)

        return call

    return decorate
