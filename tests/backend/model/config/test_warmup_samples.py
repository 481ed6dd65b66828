"""What `model_warmup` tells of real requests."""

from pathlib import Path

import pytest

from ge_backend.errors import ConfigError
from ge_backend.model.config.warmup_samples import WarmupTensor, warmup_samples
from ge_backend.tensors import data_type

VERSION = Path("/models/m/1")


def tensor(**said):
    """Return an input of a request, as the host's JSON has it."""
    return {"data_type": "TYPE_INT64", "dims": ["2", "3"], **said}


def test_requests_that_read_files():
    """With zeros beside them; random bytes are left out, and requests without a file."""
    first = {
        "ids": tensor(input_data_file="ids.bin"),
        "mask": tensor(zero_data=True),
        "noise": tensor(random_data=True),
    }
    others = [{"inputs": {"ids": tensor(zero_data=True)}}, {"name": "none"}]
    kind = {"dtype": data_type("INT64"), "dims": (2, 3)}
    assert warmup_samples({"model_warmup": [{"inputs": first}, *others]}, VERSION) == (
        {
            "ids": WarmupTensor(**kind, file=Path("/models/m/warmup/ids.bin")),
            "mask": WarmupTensor(**kind, file=None),
        },
    )
    assert warmup_samples({}, VERSION) == ()


def test_a_file_outside_the_folder_is_refused():
    """The setting is named."""
    given = [{"inputs": {"ids": tensor(input_data_file="../ids.bin")}}]
    with pytest.raises(ConfigError, match="input_data_file of model_warmup"):
        warmup_samples({"model_warmup": given}, VERSION)
