"""JSON lines, and file descriptors with them, over a Unix socket between processes of one machine."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Sequence
from typing import Any

MOST_DESCRIPTORS = 8
Message = dict[str, Any]


class Channel:
    """One end. Sending to an end that is gone does nothing; receiving from it says so."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._buffer = b""
        self.descriptors: list[int] = []  # received and not yet taken, in their order
        self.closed = False

    @staticmethod
    def pair() -> tuple[Channel, socket.socket]:
        """One end, and the other to be handed to another process."""
        mine, theirs = socket.socketpair()
        return Channel(mine), theirs

    def fileno(self) -> int:
        """Return the file descriptor of the socket, to wait on."""
        return self._socket.fileno()

    def send(self, message: Message, descriptors: Sequence[int] = ()) -> None:
        """Send a message, with file descriptors; nothing happens where the other side is gone."""
        data = json.dumps(message).encode() + b"\n"
        with contextlib.suppress(OSError):
            if descriptors:
                data = data[socket.send_fds(self._socket, [data], list(descriptors)) :]
            self._socket.sendall(data)

    def receive(self) -> list[Message]:
        """Return messages after waiting for them; set `closed` where no more will come."""
        try:
            data, descriptors, _, _ = socket.recv_fds(self._socket, 1 << 16, MOST_DESCRIPTORS)
        except ConnectionError:
            data, descriptors = b"", []
        self.descriptors += descriptors
        self.closed = not data
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        return [json.loads(line) for line in lines]

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()
