"""The reference's bucket lists, and how its settings are called here."""

import hashlib
import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from builders.golden import reference_cases
from ge_backend.generate.buckets.phase_parameters import (
    PhaseParameters,
    PhaseStrategy,
    SlidingWindow,
    chosen_strategy,
)
from ge_backend.generate.buckets.phase_ranges import PhaseRule

AXES = {"BS": "batch", "QUERY": "query", "SEQ": "query", "CTX": "context", "BLOCK": "context"}
OVERRIDE = re.compile(r"VLLM_(PROMPT|DECODE)_(BS|QUERY|SEQ|CTX|BLOCK)_BUCKET_(\w+)")


@pytest.fixture(scope="session")
def golden():
    """Return a function that gives the reference cases of some kinds; never none."""
    return reference_cases()


@pytest.fixture(scope="session")
def digest() -> Callable[[Any], str]:
    """Return the hash of a bucket list as the reference cases keep it."""

    def sha256(buckets: Any) -> str:
        text = json.dumps(buckets, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    return sha256


@pytest.fixture(scope="session")
def phase_parameters() -> Callable[[dict[str, Any]], PhaseParameters]:
    """Return a function from a reference case's settings to parameters."""
    return _parameters


@pytest.fixture(scope="session")
def phase_rule() -> Callable[..., PhaseRule]:
    """Return a function from a reference case to the rule that it names."""

    def rule(case: dict[str, Any], *, compat: bool) -> PhaseRule:
        return PhaseRule(strategy=_strategy(case), compat=compat)

    return rule


def _parameters(case: dict[str, Any]) -> PhaseParameters:
    given, environment, config = case["params"], case.get("env", {}), case.get("config", {})
    overrides = {}
    for name, value in environment.items():
        match = OVERRIDE.fullmatch(name)
        if match:
            overrides[f"{match[1].lower()}.{AXES[match[2]]}.{match[3].lower()}"] = int(value)
    window = None
    if environment.get("PT_HPU_SDPA_QKV_SLICE_MODE_FWD") == "true":
        window = SlidingWindow(
            threshold=int(environment.get("VLLM_FUSEDSDPA_SLIDE_THLD", 8192)),
            slice=int(environment.get("PT_HPU_SDPA_BC_FACTOR", 1024)),
        )
    contiguous = environment.get("VLLM_CONTIGUOUS_PA") == "true"
    return PhaseParameters(
        max_seqs=given["max_num_seqs"],
        max_prefill_seqs=given["max_num_prefill_seqs"],
        block_tokens=given["block_size"],
        max_batch_tokens=given["max_num_batched_tokens"],
        max_model_tokens=given["max_model_len"],
        num_blocks=given.get("num_hpu_blocks", 0),
        contiguous=contiguous or config.get("use_contiguous_pa", False),
        merged_prefill=environment.get("VLLM_MERGED_PREFILL") == "true",
        speculative_tokens=given.get("num_speculative_tokens", 0),
        clamp_decode_context=not given.get("skip_decode_block_clamp", False),
        mamba_chunk=given.get("mamba_chunk_size", 0),
        mamba_chunk_explicit=given.get("mamba_chunk_size_is_explicit", False),
        sliding_window=window,
        overrides=overrides,
    )


def _strategy(case: dict[str, Any]) -> PhaseStrategy:
    if case["strategy"] not in ("selection", "lookup"):
        return PhaseStrategy(case["strategy"])
    environment = case.get("env", {})
    older = environment.get("VLLM_EXPONENTIAL_BUCKETING")
    return chosen_strategy(
        environment.get("VLLM_BUCKETING_STRATEGY", "exp"),
        exponential=None if older is None else older in ("true", "1"),
    )
