"""Requests for text are read as Triton's vLLM backend reads them, and answered as it answers."""

import json
from dataclasses import replace

import numpy as np
import pytest

from ge_backend.errors import InvalidRequest
from ge_backend.host.room import Room
from ge_text.protocol import Delta
from ge_text.stub.tensors import SWITCHES

DELTA = Delta(number=1, sample=0, text=" world", ids=(5, 6), cumulative=-1.5, prompt_tokens=2)


def request(pb_utils, outputs=("text_output",), parameters=None, timeout_us=0, **tensors):
    arrays = {
        name: np.array([value.encode()], object) if isinstance(value, str) else np.array(value)
        for name, value in tensors.items()
    }
    made = pb_utils.InferenceRequest(
        [pb_utils.Tensor(name, array) for name, array in arrays.items()],
        outputs,
        timeout=timeout_us,
    )
    made.parameters = lambda: json.dumps(parameters or {})
    return made


def read(pb_utils, **given):
    from ge_text.stub.requests import read_text_request

    return read_text_request(request(pb_utils, **given))


def test_a_prompt_alone_is_enough(pb_utils):
    """Without switches there is one response, which begins with the prompt."""
    asked = read(pb_utils, text_input="hello")
    assert (asked.prompt.text, asked.prompt.ids, asked.prompt.parameters) == ("hello", (), "{}")
    assert (asked.stream, asked.prepend, asked.wanted) == (False, True, {"text_output"})


def test_a_stream_holds_new_text_only(pb_utils):
    """Streaming leaves the prompt out by itself; asking for it is a contradiction."""
    assert not read(pb_utils, text_input="a", stream=[True]).prepend
    with pytest.raises(InvalidRequest, match="exclude_input_in_output is false and stream"):
        read(pb_utils, text_input="a", stream=[True], exclude_input_in_output=[False])


def test_parameters_come_as_a_tensor_or_with_the_request(pb_utils):
    """Or as both, as clients of the vLLM backend send them: then the tensor's values count."""
    assert read(pb_utils, text_input="a", parameters={"n": 2}).prompt.parameters == '{"n": 2}'
    both = read(pb_utils, text_input="a", sampling_parameters='{"n":3}', parameters={"n": 2})
    assert json.loads(both.prompt.parameters) == {"n": 3}


def test_parameters_beside_the_tensor_are_not_ignored(pb_utils):
    """Whoever adds one to a request gets it, or is told that it is unknown."""
    both = read(pb_utils, text_input="a", sampling_parameters='{"n":3}', parameters={"seed": 2})
    assert json.loads(both.prompt.parameters) == {"n": 3, "seed": 2}


@pytest.mark.parametrize("text", ["{", "[1]", "[" * 100_000, "5"])
def test_a_tensor_that_is_no_json_object_is_left_to_whoever_refuses_it(pb_utils, text):
    """Its error names the tensor, whatever stands beside it."""
    both = read(pb_utils, text_input="a", sampling_parameters=text, parameters={"seed": 2})
    assert both.prompt.parameters == text


def test_a_request_brings_its_time_limit_along(pb_utils):
    """Of the host's own field, in microseconds; 0 is none."""
    assert read(pb_utils, text_input="a", timeout_us=1_500_000).prompt.timeout_s == 1.5
    assert read(pb_utils, text_input="a").prompt.timeout_s == 0.0


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({}, "either text_input or input_ids, got none"),
        ({"text_input": "a", "input_ids": [1]}, "got input_ids and text_input"),
        ({"input_ids": np.zeros(0, np.int64)}, "input_ids has no token"),
        ({"text_input": [b"a", b"b"]}, "text_input holds 2 texts"),
        ({"text_input": "a", "stream": [True, False]}, "stream holds 2 values"),
        ({"text_input": [b"\xff"]}, "not UTF-8"),
    ],
)
def test_what_cannot_be_read_is_named(pb_utils, tensors, message):
    """The client learns which tensor is wrong, and how."""
    given = {
        k: np.array(v, object) if isinstance(v, list) and isinstance(v[0], bytes) else v
        for k, v in tensors.items()
    }
    with pytest.raises(InvalidRequest, match=message):
        read(pb_utils, **given)


def test_parameters_that_are_no_text_are_refused(pb_utils):
    """The host passes on the bytes that came: names, values, and the `id` of a body."""
    from ge_text.stub.requests import read_text_request

    given = request(pb_utils, text_input="a")
    given.parameters = b'{"id":"\xff"}'.decode
    with pytest.raises(InvalidRequest, match=r"a parameter of the request is not UTF-8: .* 0xff"):
        read_text_request(given)


def test_tokens_may_stand_for_the_prompt(pb_utils):
    """There is no text to begin the answer with then."""
    asked = read(pb_utils, input_ids=[4, 5], outputs=("text_output", "output_ids"))
    assert (asked.prompt.text, asked.prompt.ids, asked.prepend) == ("", (4, 5), False)
    assert asked.wanted == {"text_output", "output_ids"}


def test_a_wish_for_the_sum_of_log_probabilities_goes_along(pb_utils):
    """It has to be known before tokens are drawn."""
    given = {"text_input": "a", "outputs": ("logprobs", "cumulative_logprob")}
    assert read(pb_utils, **given, return_cumulative_logprob=[True]).prompt.cumulative
    assert not read(pb_utils, **given, return_logprobs=[True]).prompt.cumulative


def test_a_response_has_what_was_asked_for(pb_utils):
    """One element per sample; `None` is what the vLLM backend says while nothing has ended."""
    from ge_text.stub.requests import write_text_response

    asked = read(
        pb_utils,
        text_input="hello",
        return_finish_reason=[True],
        return_num_input_tokens=[True],
        return_num_output_tokens=[True],
        return_cumulative_logprob=[True],
        return_logprobs=[True],
        outputs=("text_output", *SWITCHES),
    )
    response = write_text_response(asked, [DELTA], Room(), first=True)
    arrays = {tensor.name(): tensor.as_numpy().tolist() for tensor in response.output_tensors()}
    assert arrays == {
        "text_output": [b"hello world"],
        "finish_reason": [b"None"],
        "cumulative_logprob": [-1.5],
        "logprobs": [b"null"],
        "num_input_tokens": [2],
        "num_output_tokens": [2],
        "output_ids": [5, 6],
    }
    plain = write_text_response(read(pb_utils, text_input="hello"), [DELTA], Room(), first=False)
    assert [t.as_numpy().tolist() for t in plain.output_tensors()] == [[b" world"]]


def test_log_probabilities_are_one_list_per_sample(pb_utils):
    """Of JSON objects, one per token; `null` where none were asked for."""
    from ge_text.stub.requests import write_text_response

    asked = read(pb_utils, text_input="a", return_logprobs=[True], outputs=("logprobs",))
    deltas = [replace(DELTA, logprobs=('{"5":1}', '{"6":2}')), DELTA]
    (tensor,) = write_text_response(asked, deltas, Room(), first=True).output_tensors()
    assert tensor.as_numpy().tolist() == [b'[{"5":1},{"6":2}]', b"null"]


def test_a_response_has_nothing_that_was_not_named(pb_utils):
    """Neither the text nor what a switch asks for: the host would drop it, which crashed stubs."""
    from ge_text.stub.requests import write_text_response

    asked = read(
        pb_utils, text_input="a", return_finish_reason=[True], outputs=("output_ids", "logprobs")
    )
    response = write_text_response(asked, [DELTA], Room(), first=True)
    assert [tensor.name() for tensor in response.output_tensors()] == ["output_ids"]


ALL = ("text_output", *SWITCHES)


def said(pb_utils, deltas=(DELTA,), **given):
    """Return the parameters of the response to a request that is to have some."""
    from ge_text.stub.requests import read_text_request, write_text_response

    asked = read_text_request(request(pb_utils, text_input="a", **given), parameters=True)
    return json.loads(write_text_response(asked, deltas, Room(), first=True).parameters())


def test_parameters_of_a_response_say_what_outputs_would(newer_pb_utils):
    """By their names, without having to be asked for one by one, and the adapter as it was asked."""
    told = said(newer_pb_utils, parameters={"lora_name": "pirate"})
    assert told == {
        "finish_reason": "None",
        "num_input_tokens": 2,
        "num_output_tokens": 2,
        "lora_name": "pirate",
    }


def test_what_the_cache_had_of_a_prompt_is_said_where_it_is_known(newer_pb_utils):
    """None is a number, too; vLLM's own engine does not tell."""
    deltas = [replace(DELTA, found_tokens=number) for number in (0, 32)]
    told = [said(newer_pb_utils, (delta,))["prefix_found_tokens"] for delta in deltas]
    assert told == [0, 32]
    assert "prefix_found_tokens" not in said(newer_pb_utils)


def test_several_samples_share_the_parameters_of_their_response(newer_pb_utils):
    """Which have one value of each name."""
    deltas = [replace(DELTA, finish="stop"), replace(DELTA, sample=1, ids=(5,), finish="length")]
    told = said(newer_pb_utils, deltas)
    assert (told["finish_reason"], told["num_output_tokens"]) == ("stop,length", 3)


def test_what_comes_as_an_output_is_not_said_again(newer_pb_utils):
    """Triton's `generate` shows both under one name. Source: server src/http_server.cc."""
    told = said(
        newer_pb_utils,
        outputs=ALL,
        return_finish_reason=[True],
        return_num_input_tokens=[True],
    )
    assert told == {"num_output_tokens": 2}


def test_responses_have_no_parameters_unless_the_model_says_so(pb_utils):
    """Hosts before 25.02 take none, and this is such a one."""
    from ge_text.stub.requests import write_text_response

    response = write_text_response(read(pb_utils, text_input="a"), [DELTA], Room(), first=True)
    assert not hasattr(response, "parameters")
