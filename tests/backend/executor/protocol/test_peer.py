"""The kernel tells whose process is at the other end."""

import os
import socket

from ge_backend.executor.protocol.peer import peer_pid, peer_uid


def test_a_peer_of_ours_has_our_uid():
    """Both ends of a pair belong to this process's user."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        assert peer_uid(ours) == peer_uid(theirs) == os.getuid()


def test_a_peer_in_this_process_is_this_process():
    """That is how an executor inside the stub is told from one of its own."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        assert peer_pid(ours) == peer_pid(theirs) == os.getpid()
