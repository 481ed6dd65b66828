"""Errors in OpenAI's form."""

import json

import pytest
from starlette.responses import JSONResponse

from ge_openai.api_error import ApiError, error_of_grpc
from ge_openai.text_body import read_completion

# What tells that a larger model might do. Source: litellm 1.110.2,
# `litellm_core_utils/exception_mapping_utils.py`; langchain-openai 1.7.4, `chat_models/base.py`.
LITELLM = ("this model's maximum context length is", "model's maximum context limit")
LANGCHAIN = "context_length_exceeded"


def test_the_body_is_openais():
    """Message, type, parameter and code, and whose fault it is by the status."""
    error = ApiError("n is 0", param="n", code="c")
    assert error.body() == {
        "error": {"message": "n is 0", "type": "invalid_request_error", "param": "n", "code": "c"}
    }
    assert ApiError("x", status=503).body()["error"]["type"] == "server_error"


def test_the_body_can_always_be_sent():
    """Half of a pair of surrogates, which JSON can write, is told by its escape."""
    with pytest.raises(ApiError) as caught:
        read_completion(b'{"model": "m", "prompt": "a", "\\ud800": 1}')
    sent = json.loads(JSONResponse(caught.value.body()).body)["error"]
    assert sent["param"] == r"\ud800"
    assert sent["message"].startswith(r"\ud800 is not known")


@pytest.mark.parametrize(
    ("status", "number"),
    [
        ("INVALID_ARGUMENT", 400),
        ("NOT_FOUND", 404),
        ("UNAVAILABLE", 503),
        ("INTERNAL", 500),
        ("", 500),
    ],
)
def test_a_status_of_grpc_is_one_of_http(status, number):
    """Unknown ones are the server's fault."""
    error = error_of_grpc(status, "text")
    assert (error.status, str(error)) == (number, "text")


def test_an_adapter_that_is_not_there_is_a_model_that_is_not(tmp_path):
    """It is asked for as one; the engine's words, which name those that are, reach the client."""
    adapters = pytest.importorskip("ge_text.models.adapter_folder")
    with pytest.raises(pytest.importorskip("ge_backend.errors").InvalidRequest) as caught:
        adapters.AdapterFolder(tmp_path, (), "FP32").find("clerk")
    error = error_of_grpc("INVALID_ARGUMENT", str(caught.value))
    assert (error.status, error.param, error.code) == (404, "model", "model_not_found")
    assert "'clerk'" in str(error)


@pytest.mark.parametrize("max_tokens", [None, 9])
@pytest.mark.parametrize("cache_tokens", [4, 100])
def test_what_the_model_cannot_hold_has_openais_code(max_tokens, cache_tokens):
    """Prompt and output together, be it for the model's positions or for the cache."""
    pytest.importorskip("ge_text")
    from ge_text.engine.parameters import Parameters
    from ge_text.engine.sequence import GenerationRequest, Limits

    limits = Limits(vocabulary=9, max_positions=8, cache_tokens=cache_tokens)
    asks = Parameters(max_tokens=max_tokens)
    asked = GenerationRequest(id="1", prompt=(1,) * 8, parameters=asks)
    with pytest.raises(pytest.importorskip("ge_backend.errors").InvalidRequest) as caught:
        limits.output_tokens(asked)
    error = error_of_grpc("INVALID_ARGUMENT", str(caught.value))
    assert (error.status, error.code) == (400, "context_length_exceeded")
    assert error_of_grpc("INVALID_ARGUMENT", "top_p is 2").code is None
    assert any(phrase in str(error).lower() for phrase in LITELLM)
    assert LANGCHAIN in str(error.body())


def test_vllms_own_words_have_the_code():
    """A text that vLLM itself refuses, as it is told by the executor."""
    told = "vLLM refuses the request: This model's maximum context length is 8 tokens. However, …"
    assert error_of_grpc("INVALID_ARGUMENT", told).code == "context_length_exceeded"
