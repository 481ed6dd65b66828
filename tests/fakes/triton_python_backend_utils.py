"""A small stand-in for the host's module, with the members that `ge_backend.host` uses.

What it leaves out or has wrong shows in `tests/server/`, where the same code meets the real one.
"""

import json
from typing import ClassVar

import numpy as np

TRITONSERVER_RESPONSE_COMPLETE_FINAL = 1
MODEL_DIR = ""


class TritonModelException(Exception):
    pass


class TritonError:
    INTERNAL = "INTERNAL"
    INVALID_ARG = "INVALID_ARG"
    UNAVAILABLE = "UNAVAILABLE"
    UNSUPPORTED = "UNSUPPORTED"
    CANCELLED = "CANCELLED"

    def __init__(self, message, code=INTERNAL):
        self._message, self._code = message, code

    def message(self):
        return self._message

    def code(self):
        return self._code


class Tensor:
    def __init__(self, name, array):
        if not isinstance(array, np.ndarray):
            raise TritonModelException("Tensor needs a numpy array")
        self._name, self._array = name, array

    def name(self):
        return self._name

    def shape(self):
        return list(self._array.shape)

    def as_numpy(self):
        return self._array

    def to_dlpack(self):
        return self._array

    @classmethod
    def from_dlpack(cls, name, capsule):
        tensor = cls(name, np.zeros(0))
        tensor.capsule = capsule
        return tensor


class InferenceResponse:
    def __init__(self, output_tensors=(), error=None):
        self._outputs, self._error = list(output_tensors), error

    def output_tensors(self):
        return self._outputs

    def has_error(self):
        return self._error is not None

    def error(self):
        return self._error


class ResponseWithParameters(InferenceResponse):
    """That of hosts from 25.02 on. Source: python_backend 1ea48a6 src/pb_stub.cc."""

    def __init__(self, output_tensors=(), error=None, parameters=None):
        super().__init__(output_tensors, error)
        given = parameters or {}
        if any(not isinstance(value, bool | int | str) for value in given.values()):
            raise TritonModelException("Expect parameters values to have type bool/int/str")
        self._parameters = json.dumps(given)

    def parameters(self):
        return self._parameters


class Sender:
    def __init__(self):
        self.sent = []

    def send(self, response=None, flags=0):
        self.sent.append((response, flags))


class InferenceRequest:
    def __init__(self, inputs=(), requested_output_names=(), timeout=0, correlation_id=0, flags=0):
        self._inputs, self._names, self._timeout = list(inputs), requested_output_names, timeout
        self._correlation_id, self._flags = correlation_id, flags
        self.sender = Sender()
        self.cancelled = False

    def is_cancelled(self):
        return self.cancelled

    def correlation_id(self):
        return self._correlation_id

    def flags(self):
        return self._flags

    def inputs(self):
        return self._inputs

    def requested_output_names(self):
        return self._names

    def timeout(self):
        return self._timeout

    def get_response_sender(self):
        return self.sender


class Logger:
    lines: ClassVar = []

    @classmethod
    def log_info(cls, line):
        cls.lines.append(("info", line))

    @classmethod
    def log_warn(cls, line):
        cls.lines.append(("warn", line))

    @classmethod
    def log_error(cls, line):
        cls.lines.append(("error", line))

    @classmethod
    def log_verbose(cls, line):
        cls.lines.append(("verbose", line))


class Metric:
    def __init__(self, labels):
        self.labels, self.value = labels, 0.0
        self.was = []

    def increment(self, value):
        self.value += value

    def set(self, value):
        self.value = value
        self.was.append(value)


class MetricFamily:
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"
    families: ClassVar = {}

    def __init__(self, name, description, kind):
        self.name, self.description, self.kind = name, description, kind
        self.series = []
        MetricFamily.families[name] = self

    def Metric(self, labels):  # noqa: N802 - the host's name
        metric = Metric(labels)
        self.series.append(metric)
        return metric


def get_model_dir():
    return MODEL_DIR


class ModelConfig:
    """The host's completion object, as far as it refuses things."""

    def __init__(self, model_config):
        self._config = json.loads(model_config)

    def as_dict(self):
        return self._config

    def set_max_batch_size(self, size):
        if self._config["max_batch_size"] > size:
            raise ValueError("max_batch_size may only be raised")
        self._config["max_batch_size"] = size

    def set_dynamic_batching(self):
        self._config.setdefault("dynamic_batching", {})

    def add_input(self, block):
        if set(block) - {"name", "data_type", "dims", "optional"}:
            raise ValueError("unexpected property")
        self._config["input"].append(dict(block))

    def add_output(self, block):
        if set(block) - {"name", "data_type", "dims"}:
            raise ValueError("unexpected property")
        self._config["output"].append(dict(block))
