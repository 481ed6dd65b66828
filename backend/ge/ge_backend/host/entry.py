"""What serves a model instance, by the kind of its model, which is imported here and not before."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from pathlib import Path

from ge_backend.errors import ConfigError, GeError, for_host
from ge_backend.executor.process.reap_orphans import region_of
from ge_backend.host.instance import Instance
from ge_backend.kinds import Serving, kind_of

__all__ = ["open_instance"]

log = logging.getLogger(__name__)


def open_instance(args: dict[str, str]) -> Serving:
    """Load the model that the host's `args` describe.

    Raises:
        GeError: it cannot be served as configured; the host reports it at load.
    """
    _close_region_to_others()
    _close_host_connections()
    try:
        instance = Instance.read(args)
        _refuse_undeclared(instance)
        return kind_of(instance.config).open(instance)
    except GeError as error:
        raise for_host(error) from None


def _refuse_undeclared(instance: Instance) -> None:
    """Refuse a model without outputs, whose answers the host would take and leave empty.

    Nothing has completed its configuration where the server was told not to.
    """
    missing = [what for what in ("input", "output") if not instance.given.get(what)]
    if missing:
        raise ConfigError(
            f"model {instance.config.name!r}: its configuration has no {' and no '.join(missing)}, "
            "and the server completes none (--disable-auto-complete-config); declare them in "
            "config.pbtxt, or start the server without that"
        )


def _close_region_to_others() -> None:
    """Let other users of the machine read nothing of what clients send.

    It comes through this stub's region of shared memory, which the host makes with mode 0644,
    whatever the umask says (tested on 2.51), and opens by its name just once.
    """
    region = region_of(os.getpid())
    if region is None:
        return
    try:
        region.chmod(0o600)
    except OSError as error:
        log.warning("other users of this machine can read what clients send: %s", error)


def _close_host_connections() -> None:
    """Close the host's connections, of which a stub that is started later has copies.

    One that the host closes would stay open to its client for as long as this stub lives (seen on
    2.51). What Python itself has opened is not inheritable, so none of it is among them.
    """
    for descriptor in [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]:
        with contextlib.suppress(OSError):  # that of the listing, and what is no socket
            if os.get_inheritable(descriptor):
                inherited = socket.socket(fileno=descriptor)
                if inherited.family in {socket.AF_INET, socket.AF_INET6}:
                    inherited.close()
                else:
                    inherited.detach()
