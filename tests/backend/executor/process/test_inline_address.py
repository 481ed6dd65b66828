"""The address of an executor inside a stub, and the kernel's list of such."""

import os

from ge_backend.executor.process.inline_address import InlineAddress

TABLE = """\
Num       RefCount Protocol Flags    Type St Inode Path
0000: 00000002 00000000 00010000 0005 01 100 @ge-inline/7/8/abcd/cuda:1
0000: 00000003 00000000 00000000 0005 03 101 @ge-inline/7/8/abcd/cuda:1
0000: 00000002 00000000 00010000 0005 01 102 @ge-inline/me/8/abcd/cpu
0000: 00000002 00000000 00010000 0005 01 103 @ge-inline/7
0000: 00000002 00000000 00010000 0001 01 104 /run/ge-inline/7/8/abcd/cpu
0000: 00000003 00000000 00000000 0001 03 105
"""


def test_addresses_are_found_in_the_kernels_list_once_each(tmp_path):
    """A connection of one has its name, too; what others have called likewise is left."""
    (tmp_path / "unix").write_text(TABLE)
    found = InlineAddress.listed(tmp_path / "unix")
    assert found == [InlineAddress(owner_pid=7, pid=8, token="abcd", device="cuda:1")]
    assert found[0].socket == "\0ge-inline/7/8/abcd/cuda:1"


def test_no_two_of_a_process_are_the_same():
    """As a fused ensemble has several; the server is the parent of its stubs."""
    one, other = InlineAddress.fresh("cpu"), InlineAddress.fresh("cpu")
    assert one.socket != other.socket
    assert (one.owner_pid, one.pid) == (os.getppid(), os.getpid())
