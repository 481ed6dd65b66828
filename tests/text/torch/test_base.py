"""Both forms of a decoder are the same to the rest."""

import numpy as np
import pytest
import torch

from builders.language import CPU, VOCABULARY, make, opened
from ge_text.models.batch import padding_batch
from ge_text.torch.step import stage


@pytest.mark.parametrize("name", ["llama", "gpt2"])
@pytest.mark.parametrize("wanted", [(), (1,), (3, 0)])
def test_a_decoder_has_scores_for_the_tokens_that_are_sampled_alone(tmp_path, name, wanted):
    """The head is the largest product: it is computed for no other token."""
    make(tmp_path, name)
    model = opened(tmp_path, blocks=1)
    decoder = model._decoder
    assert (decoder.dtype, decoder.device) == (torch.float32, CPU)
    assert len(decoder.shapes) == {"llama": 3, "gpt2": 2}[name]
    with torch.inference_mode():
        step = stage(padding_batch((4, 1, 1)), model._cache, CPU)
        step.sampled = torch.from_numpy(np.array(wanted, np.int64))
        assert decoder.logits(step).shape == (len(wanted), VOCABULARY)
