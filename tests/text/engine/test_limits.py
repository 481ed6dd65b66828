"""What an engine can hold of one request."""

import pytest

from ge_backend.errors import InvalidRequest
from ge_text.engine.parameters import Parameters
from ge_text.engine.sequence import GenerationRequest, Limits
from ge_text.models.sampling import Sampling


def limits(positions=100, cache=200):
    return Limits(vocabulary=50, max_positions=positions, cache_tokens=cache)


def request(prompt=(1, 2), generated=(), **parameters):
    return GenerationRequest(
        id="r", prompt=tuple(prompt), parameters=Parameters(**parameters), generated=generated
    )


def test_a_request_gets_what_it_asks_for_or_what_is_left():
    """Without a limit of its own a request may fill the model."""
    assert limits().output_tokens(request(max_tokens=7)) == 7
    assert limits().output_tokens(request(max_tokens=None)) == 98


def test_a_checkpoints_own_length_is_no_more_than_there_is_room_for():
    """And no less than the tokens that a client wants at least."""
    assert limits().output_tokens(request(max_tokens=None, max_new_tokens=9)) == 9
    assert limits().output_tokens(request(max_tokens=None, max_new_tokens=9, min_tokens=11)) == 11
    assert limits().output_tokens(request(max_tokens=None, max_new_tokens=999)) == 98


def test_a_sequence_may_fill_the_cache_and_one_token_more():
    """The last token's keys are never needed."""
    assert limits(cache=20).output_tokens(request(max_tokens=19)) == 19
    with pytest.raises(InvalidRequest, match="cache has room for 20 tokens"):
        limits(cache=20).output_tokens(request(max_tokens=20))


def test_beams_share_the_cache():
    """The prompt's whole blocks lie there once; what is left is divided among them."""
    of_blocks = Limits(vocabulary=50, max_positions=100, cache_tokens=24, block_size=4)
    asked = request(prompt=[1] * 6, beam_width=2, max_tokens=None)
    most = (1 + (6 - 1) // 2) * 4 + 1 - 6
    assert of_blocks.output_tokens(asked) == most
    with pytest.raises(InvalidRequest, match="room for 24 tokens, which 2 beams share"):
        of_blocks.output_tokens(request(prompt=[1] * 6, beam_width=2, max_tokens=most + 1))


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (request(prompt=()), "the prompt has no token"),
        (request(prompt=(1, 50)), "prompt has token 50; the model's tokens are 0 to 49"),
        (request(prompt=[1] * 100, max_tokens=1), "the model has 100 positions"),
        (
            request(prompt=[1] * 100, max_tokens=None),
            "is 100 tokens, of prompt and output together: a prompt of 100 and an output of 1",
        ),
        (
            request(max_tokens=99),
            "is 100 tokens, of prompt and output together: a prompt of 2 and an output of 99",
        ),
        (request(max_tokens=None, min_tokens=99), "an output of 99"),
        (request(stop_token_ids=(70,)), "stop_token_ids has token 70"),
        (request(sampling=Sampling(logit_bias={77: 1.0})), "logit_bias has token 77"),
        (request(n=2, generated=((1,),)), "tokens of 1 samples came to go on from; n is 2"),
        (request(max_tokens=2, generated=((1, 2),)), "has 2 tokens; it may have 2"),
        (request(generated=((99,),)), "generated has token 99"),
    ],
)
def test_what_can_never_be_served_is_refused_with_the_limit(asked, message):
    """Nothing waits for room that there will never be."""
    with pytest.raises(InvalidRequest) as caught:
        limits().output_tokens(asked)
    assert message in str(caught.value)


def test_samples_that_have_ended_do_not_begin_again():
    """A request that another engine began goes on with those samples that it still owes."""
    assert request(n=3).samples() == [(0, ()), (1, ()), (2, ())]
    assert request(n=3, generated=((5,), None, ())).samples() == [(0, (5,)), (2, ())]
