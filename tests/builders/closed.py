"""A folder into which nobody may look."""

import contextlib
import os

NO_ROW = 65534


@contextlib.contextmanager
def closed(folder):
    """Let no user look into a folder for a while.

    Root, who may always, is another user then, who may look into no folder of the tests.
    """
    mode, user = folder.stat().st_mode, os.geteuid()
    folder.chmod(0)
    if user == 0:
        os.seteuid(NO_ROW)
    try:
        yield
    finally:
        os.seteuid(user)
        folder.chmod(mode)
