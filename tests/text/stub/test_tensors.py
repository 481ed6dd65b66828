"""A language model's configuration is completed with the tensors of Triton's vLLM backend."""

from ge_text.stub.tensors import completed_for_text


def test_a_bare_configuration_gets_everything():
    """Decoupled, unbatched, all inputs optional; names and types are those that clients know."""
    whole = completed_for_text({"name": "writer", "max_batch_size": 8, "input": [], "output": []})
    assert whole["max_batch_size"] == 0
    assert whole["model_transaction_policy"] == {"decoupled": True}
    inputs = {block["name"]: (block["data_type"], block["dims"]) for block in whole["input"]}
    assert inputs["text_input"] == ("TYPE_STRING", [1])
    assert inputs["input_ids"] == ("TYPE_INT64", [-1])
    assert inputs["stream"] == inputs["return_logprobs"] == ("TYPE_BOOL", [1])
    assert all(block["optional"] for block in whole["input"])
    outputs = {block["name"]: (block["data_type"], block["dims"]) for block in whole["output"]}
    assert outputs == {
        "text_output": ("TYPE_STRING", [-1]),
        "finish_reason": ("TYPE_STRING", [-1]),
        "cumulative_logprob": ("TYPE_FP32", [-1]),
        "logprobs": ("TYPE_STRING", [-1]),
        "num_input_tokens": ("TYPE_UINT32", [1]),
        "num_output_tokens": ("TYPE_UINT32", [-1]),
        "warnings": ("TYPE_STRING", [1]),
        "output_ids": ("TYPE_INT64", [-1]),
        "description": ("TYPE_STRING", [1]),
    }


def test_what_is_declared_stays():
    """A declared input is not declared again, nor changed."""
    own = {"name": "text_input", "data_type": "TYPE_STRING", "dims": [1]}
    whole = completed_for_text({"name": "writer", "input": [own]})
    assert [block for block in whole["input"] if block["name"] == "text_input"] == [own]
