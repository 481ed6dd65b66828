"""The entry that Triton's Python backend imports: everything is in `ge_backend.host`."""

import asyncio  # noqa: F401 - else the stub imports it on the first request, which costs 25-75 ms
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

# The stub puts this folder last on sys.path: an older installed wheel would win over the copy here.
_here = Path(__file__).resolve().parent
if (_here / "ge_backend").is_dir():
    sys.path.insert(0, str(_here))

from ge_backend.host.complete import complete_config  # noqa: E402
from ge_backend.host.entry import open_instance  # noqa: E402


class TritonPythonModel:
    """One model instance, as Triton's Python backend wants it."""

    @staticmethod
    def auto_complete_config(config: Any) -> Any:
        """Fill in what config.pbtxt leaves out, from the model file."""
        return complete_config(config)

    def initialize(self, args: dict[str, str]) -> None:
        """Load the model and warm it up."""
        self.instance = open_instance(args)

    def execute(self, requests: Sequence[Any]) -> list[Any] | None:
        """Answer a batch of requests."""
        return self.instance.execute(requests)

    def is_ready(self) -> bool:
        """Tell a server whether requests make sense now; Triton asks from release 26.03 on."""
        return self.instance.ready

    def finalize(self) -> None:
        """Leave the executor."""
        self.instance.close()
