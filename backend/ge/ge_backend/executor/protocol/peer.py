"""Who is at the other end of a socket, as the kernel knows it."""

from __future__ import annotations

import socket
import struct

__all__ = ["peer_uid"]

_UCRED = struct.Struct("3i")


def peer_uid(sock: socket.socket) -> int:
    """Return the user id of the peer.

    Source: unix(7), SO_PEERCRED: struct ucred {pid, uid, gid}.
    """
    credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    _, uid, _ = _UCRED.unpack(credentials)
    return int(uid)
