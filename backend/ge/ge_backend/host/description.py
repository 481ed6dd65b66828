"""What a model says of itself to its clients: JSON in place of an answer, to who does not know it.

A request whose input `description` is not the `id` of the description that the model has is
answered with that, and with nothing else: a client asks for it with an empty one, and learns later
with the id whether the model was loaded anew.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from ge_backend.errors import InvalidRequest
from ge_backend.host.room import Room
from ge_backend.model.config.described import DESCRIPTION
from ge_backend.model.files.tokenizer_file import read_tokenizer

__all__ = ["TokenizerDescription", "description_response", "identified"]

_OPTION = "tokenizer."


def identified(said: Mapping[str, Any]) -> dict[str, Any]:
    """Return a description with its `id`, which is another one where anything else is said."""
    return {"id": hashlib.sha256(json.dumps(said).encode()).hexdigest()[:16], **said}


def description_response(
    said: bytes, wanted: Container[str], room: Room, *, batched: bool = False
) -> Any:
    """Return the response that holds a description, [1] or [1, 1], where its request names that.

    Raises:
        OutOfMemory: shared memory has no room for it.
    """
    array = np.array([[said]] if batched else [said], np.object_)
    room.check([array])
    tensors = [pb_utils.Tensor(DESCRIPTION, array)] if DESCRIPTION in wanted else []
    return pb_utils.InferenceResponse(output_tensors=tensors)


class TokenizerDescription:
    """The tokenizer that reads a model's texts, as it was when the model was loaded.

    A JSON object: `id`, `tokenizer`, a `tokenizer.json` as text with the tokens that the files
    beside it name, and `options`, the texts of the parameters `tokenizer.…` by what follows the
    dot.

    Args:
        path: the file.
        options: of `config.pbtxt`; others among them are left out.
    """

    def __init__(self, path: Path, options: Sequence[tuple[str, str]]) -> None:
        own = {
            key[len(_OPTION) :]: text.strip() for key, text in options if key.startswith(_OPTION)
        }
        said = identified({"tokenizer": read_tokenizer(path).text, "options": own})
        self._id = said["id"].encode()
        self._said = json.dumps(said).encode()

    def answer(self, request: Any, room: Room) -> Any | None:
        """Return the response to one of the host's requests that asks for it; None: none does.

        Raises:
            InvalidRequest: it asks with no text.
            OutOfMemory: shared memory has no room for it.
        """
        for tensor in request.inputs():
            if tensor.name() == DESCRIPTION:
                known = tensor.as_numpy()
                if not known.size:
                    raise InvalidRequest(f"{DESCRIPTION!r} is empty; expected a text")
                if known.flat[0] != self._id:
                    names, batched = request.requested_output_names(), known.ndim > 1
                    return description_response(self._said, names, room, batched=batched)
        return None
