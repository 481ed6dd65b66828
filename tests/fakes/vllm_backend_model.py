"""Stands for `model.py` of Triton's vLLM backend: tensors, parameters and errors are its own.

What it writes is what it was asked, as JSON: four letters a token. Prompts that hold "too long" are.
"""

import json
import threading
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils

SWITCHES = (
    *("return_finish_reason", "return_cumulative_logprob", "return_logprobs"),
    *("return_num_input_tokens", "return_num_output_tokens"),
)
INPUTS = [
    {"name": "text_input", "data_type": "TYPE_STRING", "dims": [1]},
    {"name": "image", "data_type": "TYPE_STRING", "dims": [-1], "optional": True},
    {"name": "stream", "data_type": "TYPE_BOOL", "dims": [1], "optional": True},
    {"name": "sampling_parameters", "data_type": "TYPE_STRING", "dims": [1], "optional": True},
    {"name": "exclude_input_in_output", "data_type": "TYPE_BOOL", "dims": [1], "optional": True},
    *({"name": each, "data_type": "TYPE_BOOL", "dims": [1], "optional": True} for each in SWITCHES),
    {"name": "embedding_request", "data_type": "TYPE_STRING", "dims": [1], "optional": True},
]
OUTPUTS = [
    {"name": "text_output", "data_type": "TYPE_STRING", "dims": [-1]},
    {"name": "finish_reason", "data_type": "TYPE_STRING", "dims": [-1]},
    {"name": "cumulative_logprob", "data_type": "TYPE_FP32", "dims": [-1]},
    {"name": "logprobs", "data_type": "TYPE_STRING", "dims": [-1]},
    {"name": "num_input_tokens", "data_type": "TYPE_UINT32", "dims": [1]},
    {"name": "num_output_tokens", "data_type": "TYPE_UINT32", "dims": [-1]},
]
NUMBERS = ("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty")
WHOLE = ("n", "top_k", "seed", "max_tokens", "min_tokens", "logprobs")
OTHERS = (
    *("repetition_penalty", "stop", "stop_token_ids", "bad_words", "ignore_eos", "lora_name"),
    *("skip_special_tokens", "spaces_between_special_tokens", "include_stop_str_in_output"),
    *("structured_outputs", "logit_bias", "allowed_token_ids", "prompt_logprobs", "detokenize"),
)
STRUCTURES = {"json", "regex", "choice", "grammar", "json_object", "structural_tag"}
# Of a number, its ends.
RANGES = {
    "temperature": (0, 2),
    "top_p": (1e-9, 1),
    "min_p": (0, 1),
    "presence_penalty": (-2, 2),
    "frequency_penalty": (-2, 2),
    "max_tokens": (1, float("inf")),
    "min_tokens": (0, float("inf")),
}
LETTERS = 4
VOCABULARY = 49152
FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class TritonPythonModel:
    """As its examples have it."""

    @staticmethod
    def auto_complete_config(config):
        """Declare all tensors, decoupled and without batches."""
        for each in INPUTS:
            config.add_input(each)
        for each in OUTPUTS:
            config.add_output(each)
        config.set_model_transaction_policy({"decoupled": True})
        config.set_max_batch_size(0)
        return config

    def initialize(self, args):
        """Read the list of adapters, where there is one."""
        listed = Path(pb_utils.get_model_dir()) / "multi_lora.json"
        self.adapters = list(json.loads(listed.read_text())) if listed.is_file() else None

    def execute(self, requests):
        """Answer each request in a thread of its own."""
        for request in requests:
            threading.Thread(target=self.answer, args=(request,)).start()

    def answer(self, request):
        """Send what a request asks for, or why not."""
        sender = request.get_response_sender()
        try:
            for response, last in self.responses(request):
                sender.send(response, flags=FINAL if last else 0)
        except LookupError as error:
            sender.send(failed(str(error)), flags=FINAL)
        except Exception as error:  # noqa: BLE001 - whatever vLLM raises
            sender.send(failed(f"Error generating stream: {error}"), flags=FINAL)

    def responses(self, request):
        """Yield responses, and whether each is the last."""
        tensors = {tensor.name(): tensor.as_numpy().reshape(-1)[0] for tensor in request.inputs()}
        prompt, stream = tensors["text_input"].decode(), bool(tensors.get("stream", False))
        given = tensors.get("sampling_parameters")
        parameters = json.loads(request.parameters() if given is None else given.decode())
        name = parameters.get("lora_name")
        if name is not None and self.adapters is None:
            raise LookupError("LoRA feature is not enabled.")
        if name is not None and name not in self.adapters:
            raise LookupError(f"LoRA {name} is not supported, we currently support {self.adapters}")
        if not readable(parameters):
            raise AttributeError("'NoneType' object has no attribute 'lora_name'")
        refuse(prompt, parameters)
        asked = {"prompt": prompt, "parameters": parameters, "inputs": sorted(tensors)}
        whole = json.dumps(asked)
        tokens = [whole[at : at + LETTERS] for at in range(0, len(whole), LETTERS)]
        limit = parameters.get("max_tokens", 16)
        finish = "stop" if len(tokens) <= limit else "length"
        tokens = tokens[:limit]
        wanted = {each for each in SWITCHES if tensors.get(each)}
        before = "" if tensors.get("exclude_input_in_output", stream) else prompt
        if not stream:
            yield response(prompt, tokens, finish, wanted, parameters, before), True
            return
        for at, token in enumerate(tokens):
            last = at == len(tokens) - 1
            yield response(prompt, [token], finish if last else None, wanted, parameters), last


def refuse(prompt, parameters):
    """Raise what vLLM 0.32 says of a request whose parameters could be made."""
    if "too long" in prompt:
        raise ValueError(
            "This model's maximum context length is 8 tokens. However, your prompt contains at "
            "least 9 input tokens, which exceeds this limit even without any output tokens. Please "
            "reduce the length of the input prompt. (parameter=input_tokens, value=9)"
        )
    for name in ("stop_token_ids", "allowed_token_ids"):
        unknown = [token for token in parameters.get(name, ()) if token >= VOCABULARY]
        if unknown:
            raise ValueError(
                f"token_id(s) {unknown} in {name} contain out-of-vocab token ids. "
                f"Vocabulary size: {VOCABULARY} (parameter={name}, value={unknown})"
            )
    regex = json.loads(parameters.get("structured_outputs", "{}")).get("regex", "")
    if regex.endswith("("):
        raise ValueError(f'Grammar error: at 1(8): invalid regex "{regex}" (in regex)')


def readable(parameters):
    """Return whether vLLM would make parameters of it: a null is no number, and no name is new."""
    try:
        for name, value in parameters.items():
            if name in NUMBERS:
                float(value)
            elif name in WHOLE:
                int(value)
            elif name == "structured_outputs":
                (kind,) = json.loads(value)
                if kind not in STRUCTURES:
                    return False
            elif name not in OTHERS:
                return False
    except (TypeError, ValueError):
        return False
    given = {name: float(parameters[name]) for name in RANGES if name in parameters}
    lengths = parameters.get("min_tokens", 0), parameters.get("max_tokens", 16)
    return (
        all(least <= given[name] <= most for name, (least, most) in RANGES.items() if name in given)
        and lengths[0] <= lengths[1]
        and "" not in [*parameters.get("stop", ()), *parameters.get("bad_words", ())]
    )


def response(prompt, tokens, finish, wanted, parameters, before=""):
    """Return one response, of one sample."""
    made = [pb_utils.Tensor("text_output", texts(before + "".join(tokens)))]
    if "return_finish_reason" in wanted:
        made.append(pb_utils.Tensor("finish_reason", texts(str(finish))))
    if "return_logprobs" in wanted:
        best = range(1, parameters.get("logprobs", 0) + 1)
        entries = [
            {
                7: {"logprob": -0.5, "rank": 3, "decoded_token": token},
                **{rank: {"logprob": -0.1, "rank": rank, "decoded_token": "x"} for rank in best},
            }
            for token in tokens
        ]
        made.append(pb_utils.Tensor("logprobs", texts(json.dumps(entries))))
    if "return_num_input_tokens" in wanted:
        count = np.asarray(len(prompt.split()), dtype=np.uint32)
        made.append(pb_utils.Tensor("num_input_tokens", count))
    if "return_num_output_tokens" in wanted:
        count = np.asarray([len(tokens)], dtype=np.uint32)
        made.append(pb_utils.Tensor("num_output_tokens", count))
    return pb_utils.InferenceResponse(output_tensors=made)


def failed(text):
    """Return a response that says what went wrong, without a status of its own."""
    output = pb_utils.Tensor("text_output", texts("N/A"))
    return pb_utils.InferenceResponse(output_tensors=[output], error=pb_utils.TritonError(text))


def texts(*values):
    return np.asarray([value.encode() for value in values], dtype=np.object_)
