"""Arrivals of messages, told from receiver to sender through the controller, past the network.

An operation of Megatron lasts until its message has arrived (`systems.base`), which the sender's
kernel does not know: an acknowledgement over the shaped link would come a delay later.
"""

from collections import Counter

from netbench.errors import TestbedError
from netbench.trainers.protocol import Message, MessageChannel


class Arrivals:
    """Messages of this process that have arrived, by receiver. channel: to the controller."""

    def __init__(self, channel: MessageChannel) -> None:
        self._channel = channel
        self._counts: Counter[int] = Counter()

    def tell(self, process: int) -> None:
        """Tell a process that one of its messages is here. Safe to call from any thread."""
        self._channel.send(event="arrived", to=process)

    def note(self, order: Message) -> None:
        """Count a message of this process that has arrived."""
        self._counts[order["rank"]] += 1

    def await_next(self, process: int) -> None:
        """Block until the process has one more message of this one.

        Raises TestbedError for another order: within an iteration there is none.
        """
        while not self._counts[process]:
            order = self._channel.receive()
            if order["op"] != "arrived":
                raise TestbedError(f"{order['op']!r} came while a message was on its way")
            self.note(order)
        self._counts[process] -= 1
