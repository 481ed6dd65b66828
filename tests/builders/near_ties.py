"""Texts that two ways of computing may write, where a difference is allowed at a tie alone.

In BF16 and in eight bits the sums of a row depend on the rows beside it in their last bits, on some
processors more than on others. Two tokens of nearly the same score may then change places, and from
there on the texts are others.
"""

import json

import tritonclient.grpc as grpcclient

from .text_stream import GREEDY, TextStream

# Nats between two tokens that rounding may swap; a wrong weight or a lost token is whole nats off.
TIE = 0.5
MAX_LOGPROBS = 20


def gap(server, model, ids, found, expected, sampling):
    """Return the nats between two texts' tokens where they first differ, in the model's own eyes.

    0.0 for equal texts; infinite where the model finds one of the two tokens no likely one.
    """
    if found == expected:
        return 0.0
    at = next(
        (n for n, pair in enumerate(zip(found, expected, strict=False)) if pair[0] != pair[1]),
        min(len(found), len(expected)),
    )
    if at == min(len(found), len(expected)):
        return float("inf")  # one of the two ended
    with grpcclient.InferenceServerClient(server.grpc) as connected:
        client = TextStream(connected)
        client.ask(
            model=model,
            input_ids=[*ids, *expected[:at]],
            sampling={**GREEDY, **sampling, "max_tokens": 1, "logprobs": MAX_LOGPROBS},
            return_logprobs=[True],
        )
        ((tensors,),) = client.wait().values()
    (entries,) = json.loads(tensors["logprobs"][0])
    scores = {int(token): entry["logprob"] for token, entry in entries.items()}
    if not {found[at], expected[at]} <= scores.keys():
        return float("inf")
    return abs(scores[found[at]] - scores[expected[at]])
