"""Cut a stream of bytes into lines, in linear time and bounded memory."""

from netbench.errors import TestbedError
from netbench.units import format_bytes

MAX_LINE_BYTES = 64 << 20
"""A longer line is an error. The longest seen is the trace of a rank, some MB."""

MAX_OUTPUT_BYTES = 64 << 20
"""A command run to its end may print this much; more is an error. Of stderr the end is kept."""


class LineBuffer:
    """The part of a stream that has been received and not yet taken."""

    def __init__(self) -> None:
        self._received = bytearray()
        self._num_scanned = 0

    def feed(self, data: bytes) -> None:
        """Add the next bytes of the stream."""
        self._received += data

    def take(self) -> str | None:
        """Return the next line, without its end; None until it is complete.

        Raises TestbedError for a line that is too long.
        """
        end = self._received.find(b"\n", self._num_scanned)
        if end < 0:
            self._num_scanned = len(self._received)
            if self._num_scanned > MAX_LINE_BYTES:
                raise TestbedError(f"a line is longer than {format_bytes(MAX_LINE_BYTES)}")
            return None
        line = self._received[:end].decode(errors="replace")
        del self._received[: end + 1]
        self._num_scanned = 0
        return line


def last_lines(text: bytes, count: int = 3) -> str:
    """Return the last lines of a command's output, joined into one line for a message."""
    return " | ".join(text.decode(errors="replace").strip().splitlines()[-count:])
