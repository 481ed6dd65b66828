"""A gRPC stream to models that generate text, as a client has it."""

import json
import queue

import numpy as np
import tritonclient.grpc as grpcclient

GREEDY = {"max_tokens": 24, "temperature": 0, "ignore_eos": True}


class TextStream:
    """A gRPC stream; requests and what came back for each, by number."""

    def __init__(self, client):
        self.client, self.answers = client, queue.SimpleQueue()
        client.start_stream(lambda result, error: self.answers.put((result, error)))
        self.sent = 0

    def ask(self, outputs=(), sampling=GREEDY, model="writer", timeout_us=None, **given):
        """Send a request, with a time limit or without; return its number."""
        arrays = {
            name: np.array([value.encode()], object) if isinstance(value, str) else np.array(value)
            for name, value in {**given, "sampling_parameters": json.dumps(sampling)}.items()
        }
        inputs = []
        for name, array in arrays.items():
            kind = {"O": "BYTES", "b": "BOOL", "i": "INT64"}[array.dtype.kind]
            inputs.append(grpcclient.InferInput(name, array.shape, kind))
            inputs[-1].set_data_from_numpy(array)
        self.client.async_stream_infer(
            model,
            inputs,
            request_id=str(self.sent),
            outputs=[grpcclient.InferRequestedOutput(name) for name in outputs] or None,
            enable_empty_final_response=True,
            timeout=timeout_us,
        )
        self.sent += 1
        return self.sent - 1

    def next(self):
        """Return number, tensors and whether it is the last, of whatever comes next."""
        result, error = self.answers.get(timeout=60)
        if error is not None:
            raise error
        response = result.get_response()
        names = [output.name for output in response.outputs]
        tensors = {name: result.as_numpy(name).tolist() for name in names}
        return int(response.id), tensors, response.parameters["triton_final_response"].bool_param

    def wait(self):
        """Return the responses of all requests so far, each to its end."""
        responses = {number: [] for number in range(self.sent)}
        for _ in range(self.sent):
            final = False
            while not final:
                number, tensors, final = self.next()
                if tensors:
                    responses[number].append(tensors)
        return responses
