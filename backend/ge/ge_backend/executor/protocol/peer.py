"""Who is at the other end of a socket, as the kernel knows it."""

from __future__ import annotations

import socket
import struct

__all__ = ["peer_pid", "peer_uid"]

_UCRED = struct.Struct("3i")


def peer_uid(sock: socket.socket) -> int:
    """Return the user id of the peer."""
    return _credentials(sock)[1]


def peer_pid(sock: socket.socket) -> int:
    """Return the process id of the peer: of who listens, for a connection that was made to it."""
    return _credentials(sock)[0]


def _credentials(sock: socket.socket) -> tuple[int, int, int]:
    """Return process, user and group.

    Source: unix(7), SO_PEERCRED: struct ucred {pid, uid, gid}.
    """
    pid, uid, gid = _UCRED.unpack(
        sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    )
    return pid, uid, gid
