"""Calls of a model of Triton's vLLM backend; tests/server/test_openai_vllm_backend.py asks one."""

import json

import pytest

from ge_openai.api_error import ApiError
from ge_openai.structure import FREE, Held
from ge_openai.text_call import TextCall, text_inputs, text_outputs
from ge_openai.vllm_backend import check_held, error_of_vllm, vllm_calls


def calls(samples=1, prompt="a", **sampling):
    asked = {"model": "m", "stream": False, "logprobs": True, "counts": True}
    return vllm_calls(TextCall(**asked, prompt=prompt, samples=samples, sampling=sampling))


def sampling(**given):
    (call,) = calls(**given)
    return call.sampling


def test_its_tensors_are_the_backends():
    """None of this project's own is among them, also with a schema."""
    (call,) = calls(guided_json={"type": "object"})
    assert text_inputs(call).keys() == {
        *("text_input", "stream", "exclude_input_in_output", "sampling_parameters"),
        *("return_finish_reason", "return_num_input_tokens", "return_num_output_tokens"),
        "return_logprobs",
    }
    assert set(text_outputs(call)) == {
        *("text_output", "finish_reason", "num_input_tokens", "num_output_tokens", "logprobs")
    }


def test_samples_are_asked_for_one_by_one():
    """With seeds as vLLM gives them; without one they are drawn there."""
    assert [call.sampling for call in calls(3, n=3, seed=7)] == [{"seed": at} for at in (7, 8, 9)]
    assert [call.sampling for call in calls(2, n=2)] == [{}, {}]
    assert [call.samples for call in calls(2, n=2)] == [1, 1]


def test_what_is_null_is_left_out():
    """For the backend it is a number that cannot be read; no limit is one that no model reaches."""
    assert sampling(top_k=None, min_p=0.5) == {"min_p": 0.5}
    assert sampling(max_tokens=None) == {"max_tokens": 2**20}
    assert sampling() == {}


@pytest.mark.parametrize("value", [{"regex": "a"}, '{"regex": "a"}'])
def test_structures_are_json_in_json(value):
    """By vLLM's new name, and by its older ones."""
    assert json.loads(sampling(structured_outputs=value)["structured_outputs"]) == {"regex": "a"}
    assert json.loads(sampling(guided_choice=["a"])["structured_outputs"]) == {"choice": ["a"]}


@pytest.mark.parametrize(
    ("name", "usual", "other"),
    [("beam_width", 1, 2), ("priority", 0, 1), ("prefix_cache", True, False), ("logit_bias", {}, {"7": 1})],
)  # fmt: skip
def test_what_it_does_not_take_is_refused_unless_it_says_the_usual(name, usual, other):
    """A parameter that vLLM does not know fails the request."""
    assert sampling(**{name: usual}) == {}
    with pytest.raises(ApiError, match=f"'m' does not take {name}") as error:
        sampling(**{name: other})
    assert error.value.param == name


def test_tokens_are_no_prompt():
    """It has no tensor for them."""
    with pytest.raises(ApiError, match="texts, not tokens"):
        calls(prompt=(1, 2))


def test_a_grammar_of_ours_is_refused():
    """A schema is not."""
    check_held(FREE)
    check_held(Held(sampling={"guided_json": {}}, param="response_format"))
    for param, told in (("tools", "tool_choice"), ("response_format", "response_format")):
        with pytest.raises(ApiError, match="one schema alone") as error:
            check_held(Held(sampling={"guided_grammar": "x"}, param=param))
        assert error.value.param == told


@pytest.mark.parametrize(
    ("message", "status", "code"),
    [
        ("LoRA x is not supported, we currently support ['y']", 404, "model_not_found"),
        ("LoRA feature is not enabled.", 404, "model_not_found"),
        ("The prompt is longer than the maximum model length of 8", 400, "context_length_exceeded"),
        ("This model's maximum context length is 8", 400, "context_length_exceeded"),
        ("'NoneType' object has no attribute 'lora_name'", 400, None),
        ("EngineCore encountered an issue. See stack trace (above).", 500, None),
        ("", 500, None),
        ("The engine is currently busy. Please try again later or elsewhere.", 503, None),
        ('Grammar error: at 1(8): invalid regex "a("', 400, None),
    ],
)
def test_errors_get_a_status(message, status, code):
    """All come as the server's own."""
    told = error_of_vllm(ApiError(f"Error generating stream: {message}", status=500))
    assert (told.status, told.code) == (status, code)


@pytest.mark.parametrize(
    ("name", "param"), [("stop_token_ids", "stop_token_ids"), ("input_tokens", None)]
)
def test_a_parameter_that_vllm_names_is_the_errors(name, param):
    """Where it is one of the request's; the backend's words before it are left out."""
    said = f"it is out of range (parameter={name}, value=[7])"
    told = error_of_vllm(ApiError(f"Error generating stream: {said}", status=500))
    assert (str(told), told.status, told.param) == (said, 400, param)


def test_another_error_stays_what_it_is():
    """Such as that of a process that is gone."""
    error = ApiError("Stub process 'm_0_0' is not healthy.", status=500)
    assert error_of_vllm(error) is error
