"""What responses say beside their outputs, on hosts whose responses have parameters.

Values are texts, whole numbers or switches. Source: python_backend 1ea48a6 src/infer_response.cc.
"""

from __future__ import annotations

from collections.abc import Sequence

import triton_python_backend_utils as pb_utils

from ge_backend.errors import ConfigError
from ge_backend.serving.batching.progress import RunNote

__all__ = ["check_response_parameters", "run_parameters"]


def check_response_parameters(*, wanted: bool) -> None:
    """See that this host's responses have parameters, where a model is to send some.

    A stub is not told its server's release, but the class of responses shows it.

    Raises:
        ConfigError: they have none.
    """
    if wanted and not hasattr(pb_utils.InferenceResponse, "parameters"):
        raise ConfigError(
            "response_parameters is on, and the responses of this server's Python models have no "
            "parameters, which came with Triton 2.55 (25.02); leave it out, or use a newer server"
        )


def run_parameters(runs: Sequence[RunNote]) -> dict[str, str | int]:
    """Return what the runs of one request were: `bucket`, `rows` and `padding`.

    Of several runs `bucket` has all shapes, with commas between them, and the numbers are sums. In
    a fused ensemble the names begin with the step's: `text_encoder.bucket`.
    """
    said: dict[str, str | int] = {}
    for step in dict.fromkeys(run.step for run in runs):
        own = [run for run in runs if run.step == step]
        before = f"{step}." if step else ""
        said[f"{before}bucket"] = ",".join(run.bucket for run in own)
        said[f"{before}rows"] = sum(run.rows for run in own)
        said[f"{before}padding"] = sum(run.padding for run in own)
    return said
