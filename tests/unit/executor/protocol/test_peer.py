"""The kernel tells whose process is at the other end."""

import os
import socket

from ge_backend.executor.protocol.peer import peer_uid


def test_a_peer_of_ours_has_our_uid():
    """Both ends of a pair belong to this process's user."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        assert peer_uid(ours) == peer_uid(theirs) == os.getuid()
