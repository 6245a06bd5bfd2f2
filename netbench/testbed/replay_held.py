"""Play a trace on a network held open on this machine, from another process."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

from netbench.errors import TestbedError
from netbench.network.replay import Played, Playing
from netbench.network.trace import Change, Step
from netbench.testbed.held_channel import HeldChannel
from netbench.testbed.hold import Held
from netbench.testbed.replay_session import request

LOOK_S = 0.2
"""How often the progress is told, seconds."""

BACK_S = 60.0
"""For the nodes to get back what they had, seconds."""

RESTORE_S = 30.0
"""For the same after this process was killed, seconds: then the session is."""

SESSION = "netbench.testbed.replay_session"


def replay_held(
    held: Held,
    changes: Sequence[Change],
    progress: Callable[[str], None],
    end: Callable[[Played], None] = lambda played: None,
) -> Played:
    """Play a trace on all nodes and routers of a held network, which then has its own links again.

    end: called before that. late_s is of all nodes together, which have one clock.
    Raises NetworkError, TestbedError.
    """
    argv = (sys.executable, "-m", SESSION)
    times_s = sorted({change.time_s for change in changes})
    with held.start(0, argv, None, wait=True, patience_s=RESTORE_S) as connection:
        channel = HeldChannel(connection, "the replay")
        channel.send(request(held.network, held.node_names, changes))
        playing = Playing({0: channel}, {0: [Step(time_s=t, text="") for t in times_s]})
        try:
            played = _played(held, playing, progress)
            end(played)
        except BaseException:
            with suppress(TestbedError):  # the first error is what counts
                _finish(channel, playing)
            raise
        _finish(channel, playing)
    return played


def _played(held: Held, playing: Playing, progress: Callable[[str], None]) -> Played:
    while not playing.wait(LOOK_S):
        progress(f"replaying on {len(held.node_names)} nodes: {playing.progress}")
    found = playing.result()[0]
    if isinstance(found, Exception):
        raise found
    return replace(found, clock_error_s=0.0)


def _finish(channel: HeldChannel, playing: Playing) -> None:
    channel.close()
    playing.wait(BACK_S)  # it reads the channel until then
    channel.finish(BACK_S)
