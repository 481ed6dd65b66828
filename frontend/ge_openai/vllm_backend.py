"""What a request becomes for a model of Triton's vLLM backend, which has fewer tensors than ours.

Source: triton-inference-server/vllm_backend@8de0c14, `src/model.py`, `src/utils/request.py` and
`src/utils/vllm_backend_utils.py`; vLLM 0.32, `sampling_params.py` and `v1/engine/async_llm.py`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from http import HTTPStatus
from typing import Any

from ge_openai.api_error import CONTEXT_LENGTH_EXCEEDED, TOO_LONG, ApiError
from ge_openai.structure import Held
from ge_openai.text_call import TextCall

__all__ = ["check_held", "error_of_vllm", "vllm_calls"]

# Fields of vLLM's `SamplingParams` whose values JSON can say: a bias is by numbers of tokens, and
# JSON's names are texts. One that it does not know fails the request.
_TAKEN = frozenset(
    (
        *("temperature", "top_p", "top_k", "min_p", "seed", "stop", "stop_token_ids"),
        *("presence_penalty", "frequency_penalty", "repetition_penalty"),
        *("max_tokens", "min_tokens", "ignore_eos", "bad_words", "allowed_token_ids", "logprobs"),
        *("skip_special_tokens", "spaces_between_special_tokens", "include_stop_str_in_output"),
        "lora_name",
    )
)
# What it does anyway; clients spell it out.
_ALWAYS: Mapping[str, Any] = {
    "add_special_tokens": True,
    "beam_width": 1,
    "detokenize": True,
    "early_stopping": False,
    "length_penalty": 1,
    "logit_bias": {},
    "prefix_cache": True,
    "priority": 0,
    "prompt_logprobs": 0,
    "use_beam_search": False,
}
_STRUCTURES = {
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
}
# More than any model holds; none given would be 16, and vLLM ends an answer where the model ends.
_UNLIMITED = 2**20
_LONG = re.compile(f"{TOO_LONG}|maximum model length of")
_ADAPTER = re.compile("LoRA feature is not enabled|LoRA .* is not supported")
# What the backend puts before an error of vLLM's `generate`. That lets through what it refuses of a
# request, which names the parameter or not, and that it is busy; of another fault it says nothing,
# or that its engine is dead.
_FAILED = "Error generating stream: "
_FIELD = re.compile(r"\(parameter=(\w+)[,)]")
_BUSY = "Please try again later"
_DEAD = "EngineCore encountered an issue"
# Of parameters that vLLM refuses the backend logs the reason, and stumbles over their absence.
_PARAMETERS = "'NoneType' object has no attribute"


def vllm_calls(call: TextCall) -> list[TextCall]:
    """Return what such a model is asked in place of a call: once for each sample.

    Of several in one request it gives each response's single one without saying which it is. As in
    vLLM each sample has the next seed. Source: vLLM, `v1/engine/parallel_sampling.py`.

    Raises:
        ApiError: it cannot do what is asked.
    """
    if not isinstance(call.prompt, str):
        raise ApiError(f"the model {call.model!r} takes texts, not tokens", param="prompt")
    sampling = _sampling(call)
    plain = replace(call, sampling=sampling, samples=1, ids=False)
    seed = sampling.get("seed")
    if not isinstance(seed, int):  # none, or one that it refuses
        return [plain] * call.samples
    seeds = range(seed, seed + call.samples)
    return [replace(plain, sampling={**sampling, "seed": each}) for each in seeds]


def check_held(held: Held) -> None:
    """See that such a model can be held to what an answer has to be.

    Raises:
        ApiError: it takes a grammar of llguidance's, which vLLM's other compilers do not read.
    """
    if "guided_grammar" in held.sampling:
        raise ApiError(
            "the model's backend holds an answer to one schema alone: ask for one tool by name in "
            "tool_choice, or for a response_format without tools",
            param="response_format" if held.param == "response_format" else "tool_choice",
        )


def error_of_vllm(error: ApiError) -> ApiError:
    """Return an error of such a model as a client gets it: none has a status of its own."""
    text = str(error)
    if _ADAPTER.search(text):
        return ApiError(text, status=HTTPStatus.NOT_FOUND, param="model", code="model_not_found")
    if _PARAMETERS in text:
        return ApiError("the model refuses the sampling parameters; the server's log says why")
    _, failed, said = text.partition(_FAILED)
    if not failed or not said or _DEAD in said:
        return error
    if _BUSY in said:
        return ApiError(said, status=HTTPStatus.SERVICE_UNAVAILABLE)
    if _LONG.search(said):
        return ApiError(said, code=CONTEXT_LENGTH_EXCEEDED)
    named = _FIELD.search(said)
    return ApiError(said, param=named[1] if named and named[1] in _TAKEN else None)


def _sampling(call: TextCall) -> dict[str, Any]:
    """Return a call's parameters as the backend reads them: none is null."""
    sampling: dict[str, Any] = {}
    for name, value in call.sampling.items():
        if name in _STRUCTURES:
            sampling["structured_outputs"] = json.dumps({_STRUCTURES[name]: value})
        elif name == "structured_outputs":
            sampling[name] = value if isinstance(value, str) else json.dumps(value)
        elif name == "max_tokens" and value is None:
            sampling[name] = _UNLIMITED
        elif name in _TAKEN and value is not None:
            sampling[name] = value
        elif name not in {*_TAKEN, "n"} and value not in (None, _ALWAYS.get(name)):
            raise ApiError(f"the model {call.model!r} does not take {name}", param=name)
    return sampling
