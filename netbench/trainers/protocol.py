"""The protocol between a rank and its controller: JSON objects, one per line, UTF-8.

The channel is the rank's standard input and output, or, under the fork server, one Unix stream
socket connection per rank. When it closes, the rank exits: it never outlives its controller.

Controller to fork server, first line of a connection; the forked rank keeps the connection:

    {"op": "fork", "rank": r, "netns": "/run/netns/n3" or null}

A descriptor that comes with it (SCM_RIGHTS) becomes the rank's standard output and error.

Controller to rank. `rank` is the index of the device that the process owns, in every plan:

    {"op": "connect", "rank": r, "world_size": n, "address": "10.77.0.4", "interface": "eth0",
     "store": "10.77.0.1:29500", "serve_store": true on exactly one rank,
     "device": null, or for layers on CUDA devices {"index": place among the ranks of its host,
               "nccl": false to send over gloo, "environment": of NCCL}}
    {"op": "prepare", "plan": text of `experiment_to_json`}       any number of plans
    {"op": "run", "plan_hash": h, "iteration": i, "start_at": t,  t: CLOCK_MONOTONIC, seconds
     "trace": true to get its events}                             optional
    {"op": "forget"}                                 drop the plans that were prepared
    {"op": "stop"}

For systems whose peers may leave and join (hivemind, and plans with churn). m = {rank as text:
address, ..}, the members of an epoch. A rank that starts after the others connected joins instead,
and is then prepared:

    {"op": "join", "rank": r, "world_size": n, "address": "10.77.0.4"}
    {"op": "meet", "plan_hash": h, "members": m, "epoch": e, "new": [ranks to be given the state]}
    {"op": "run", .., "elastic": true}               ranks ask about every round; the answer is:
    {"op": "round", "members": m, "again": b, "epoch": e}

Rank to controller. Every order but `forget` and `stop` is answered once, in order:

    {"event": "started", "rank": r or null, "pid": p}     once, when torch is imported
    {"event": "ready", "rank": r}                          answers connect, join
    {"event": "prepared", "rank": r, "plan_hash": h,       answers prepare
     "address": "10.77.0.4:40123" or null}                  for peers of an elastic system
    {"event": "met", "rank": r}                            answers meet
    {"event": "round", "rank": r, "complete": b}           within a run: it has a round's result,
                                                           or lost a peer; answered by "round"
    {"event": "iteration", "rank": r, "plan_hash": h, "iteration": i, "start_s": s, "end_s": e,
     "phases": {"forward_s": .., "backward_s": .., "sync_s": .., "optimizer_s": ..},    or a
                                                  collective's parts, e.g. "reduce_s"
     "loss": this rank's share of the batch's mean loss, or null,
     "samples": of this rank that reached the model, if that differs between iterations, or null,
     "events": [[kind, start_s, end_s, details], ..]}        see `events`, seconds after
                                                             `start_at`; empty without "trace"
    {"event": "error", "rank": r or null, "message": m,    the rank exits with status 1 after it
     "follows": true for a secondary failure: it lost a peer}
    {"event": "ended", "status": -9}                       sent by the fork server for a rank that
                                                           signal 9 killed

Send `connect` and `prepare` to every rank before waiting for any: they answer when all have
connected. `start_s` is the actual start of the rank (late if above `start_at`), `end_s` the end of
its part of the iteration, both CLOCK_MONOTONIC. Phases are seconds and add up to `end_s - start_s`.
"""

import json
import os
import socket
import sys
import threading
from typing import Any, BinaryIO

Message = dict[str, Any]


class ChannelClosed(Exception):
    """The controller has closed the channel, or does not follow the protocol."""


class MessageChannel:
    """JSON lines in both directions."""

    def __init__(self, reader: BinaryIO, writer: BinaryIO) -> None:
        self._reader = reader
        self._writer = writer
        self._writing = threading.Lock()

    @classmethod
    def over_standard_streams(cls) -> "MessageChannel":
        """Use this process's stdin and stdout. Later prints go to stderr instead."""
        writer = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        return cls(os.fdopen(os.dup(sys.stdin.fileno()), "rb"), writer)

    @classmethod
    def over_socket(cls, connection: socket.socket) -> "MessageChannel":
        """Use a connected stream socket."""
        return cls(connection.makefile("rb"), connection.makefile("wb"))

    def receive(self) -> Message:
        """Return the next message, blocking. Raises ChannelClosed at the end of the channel."""
        try:
            line = self._reader.readline()
        except ConnectionResetError:
            line = b""
        if not line.endswith(b"\n"):
            raise ChannelClosed
        message = json.loads(line)
        if not isinstance(message, dict):
            raise ValueError(f"expected a JSON object per line, found {line[:80]!r}")
        return message

    def send(self, **message: Any) -> None:
        """Write one message, from any thread. Raises ChannelClosed when the other end is closed."""
        try:
            with self._writing:
                self._writer.write(json.dumps(message).encode() + b"\n")
                self._writer.flush()
        except (BrokenPipeError, ConnectionResetError):
            raise ChannelClosed from None
