"""Whether a server can serve, which its own health endpoints do not tell.

When a stub dies the host answers "not healthy" to every request that its instance gets, for ever,
and calls the model READY (seen on 2.51; restarts were removed in 24.06).
"""

from __future__ import annotations

from dataclasses import dataclass

from ge_backend.executor.process.host_processes import stubs_of
from ge_tools.tritonserver.api import ServerApi

__all__ = ["StubLoss", "stub_losses"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StubLoss:
    """A model that is called ready and has fewer stubs than instances."""

    model: str
    living: int
    expected: int

    def __str__(self) -> str:
        """Say it in one line."""
        return (
            f"model {self.model!r} is READY, but {self.expected - self.living} of its "
            f"{self.expected} stubs have died"
        )


def stub_losses(api: ServerApi, server: int) -> list[StubLoss]:
    """Return the models that the server calls ready and that answer only with errors, or partly.

    Args:
        api: of the server.
        server: its process, whose stubs can be seen from here.

    Raises:
        ServerError: it does not answer.
    """
    ready = sorted(api.ready_versions().items())
    groups = {model: api.python_instances(model) for model, _ in ready}
    stubs = stubs_of(server)
    all_ = [
        StubLoss(
            model=model,
            living=sum(stub.serves(model, groups[model]) for stub in stubs),
            expected=count * len(groups[model]),
        )
        for model, count in ready
    ]
    return [one for one in all_ if one.living < one.expected]
