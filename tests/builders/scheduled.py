"""Models on the null device whose runs wait for the test, and clients that send to them."""

import json

import numpy as np
import tritonclient.grpc as grpcclient

from builders.graphs import parameters, write_model
from builders.metrics import metric
from builders.null_models import comes_true
from builders.regions import Answer

# Inputs of these values hold their run, or let it fail.
HELD, ALSO_HELD, FAILING = 777.0, 778.0, 779.0
CONFIG = """
input [ {{ name: "x" data_type: TYPE_FP32 dims: [ 1 ] }} ]
output [ {{ name: "y" data_type: TYPE_FP32 dims: [ 1 ] }} ]
max_batch_size: {rows}
{more}
"""


def write_held(repository, name, folder, more="", *, rows=1, versions=(1,), cost_ms=0, **settings):
    """Write a model whose runs of `HELD` make the file `folder/777`, and so on.

    Version 1 answers y = x for x [batch, 1], later ones zeros. `more` is of its configuration,
    beside inputs and outputs; a run takes `cost_ms`; `settings` are parameters.
    """
    config = CONFIG.format(rows=rows, more=more)
    config += parameters(**{"device": "null", "warmup": "off", **settings})
    tensor = {"dtype": "FP32", "dims": ["batch", 1]}
    faults = [
        {"on": "run", "do": "hold", "value": value, "file": str(folder / f"{value:.0f}")}
        for value in (HELD, ALSO_HELD)
    ]
    faults.append({"on": "run", "do": "fail", "value": FAILING})
    write_model(repository, name, config)
    for version in versions:
        compute = {"compute": "echo", "of": "x"} if version == 1 else {"compute": "zeros"}
        graph = {
            "inputs": [{"name": "x", **tensor}],
            "outputs": [{"name": "y", **tensor, **compute}],
            "faults": faults,
            "cost_ms": {"*": cost_ms},
        }
        here = repository / name / str(version)
        here.mkdir(exist_ok=True)
        (here / "model.null").write_text(json.dumps(graph))


class Scheduled:
    """A server with such models, and what is asked of it."""

    def __init__(self, server, folder):
        self.server = server
        self._folder = folder
        self.client = grpcclient.InferenceServerClient(server.grpc)

    def send(self, model, value, *, rows=1, **terms):
        """Send a request; `rows` of that value."""
        x = grpcclient.InferInput("x", [rows, 1], "FP32")
        x.set_data_from_numpy(np.full((rows, 1), value, np.float32))
        return Answer(self.client, model, [x], **terms)

    def ask(self, model, value, **terms):
        """Return the answer to a request: its first value."""
        return self.send(model, value, **terms).get().as_numpy("y")[0, 0]

    def hold(self, model, value=HELD, **terms):
        """Send a request whose run is held, and wait until it has begun."""
        answer = self.send(model, value, **terms)
        assert comes_true(lambda: self.held(value), 30)
        return answer

    def held(self, value=HELD):
        """Whether a run of this value has begun and waits."""
        return (self._folder / f"{value:.0f}").exists()

    def let_go(self, value=HELD):
        """Let the run that is held go on."""
        (self._folder / f"{value:.0f}").unlink()

    def figure(self, name, **labels):
        """Return a metric as it is now; 0 while nobody has published it."""
        return metric(self.server, name, **labels)

    def comes_to(self, value, name, **labels):
        """Wait until a metric has this value."""
        return comes_true(lambda: self.figure(name, **labels) == value, 30)

    def comes_to_batches(self, batches, model):
        """Wait until the host has counted these; it does when their answers have gone out."""
        return comes_true(lambda: self.batches(model) == batches, 30)

    def batches(self, model):
        """Return how many batches of each size the host has executed."""
        told = self.client.get_inference_statistics(model, as_json=True)["model_stats"][0]
        return {
            int(batch["batch_size"]): int(batch["compute_infer"]["count"])
            for batch in told.get("batch_stats", [])
        }

    def close(self):
        """Let everything go on and leave."""
        for file in self._folder.iterdir():
            file.unlink()
        self.client.close()
