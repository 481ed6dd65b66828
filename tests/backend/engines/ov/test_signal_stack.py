"""Compiled models of OpenVINO come and go, and the thread's stack for signals stays."""

import numpy as np
import pytest

from ge_backend.engines.ov.signal_stack import signal_stack

openvino = pytest.importorskip("openvino")


def test_models_that_end_in_the_order_of_their_beginning_leave_the_stack(tmp_path):
    """Else the next signal would be handled on memory that is freed already."""
    from openvino import opset13

    from ge_backend.device.base import GraphSource
    from ge_backend.device.machine.threads import Cores
    from ge_backend.engines.ov.graph import OpenVinoGraph

    path = tmp_path / "model.xml"
    given = opset13.parameter([-1, 4], np.float32, name="x")
    openvino.save_model(openvino.Model([opset13.relu(given)], [given]), path)
    before = signal_stack()
    graphs = [OpenVinoGraph(GraphSource.of(path, threads=1), Cores(1)) for _ in range(2)]
    for graph in graphs:
        feeds = {spec.name: np.ones((2, 4), np.float32) for spec in graph.signature.inputs}
        graph.run(feeds, {}, exclusive=False)
        assert signal_stack().place == before.place
    for graph in graphs:
        graph.close()
        assert (signal_stack().place, signal_stack().nbytes) == (before.place, before.nbytes)
