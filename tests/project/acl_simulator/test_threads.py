"""Many threads, each with a stream of its own, on one device."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from acl_simulator import Affine, Simulator, Static
from builders.acl_rig import D2H, H2D, Rig, ok

THREADS, RUNS = 4, 25


@pytest.mark.parametrize("delay_s", [None, 0.0], ids=["when waited for", "by themselves"])
def test_streams_of_several_threads_do_not_disturb_each_other(tmp_path, delay_s):
    sim = Simulator(delay_s=delay_s)
    ok(sim.init())
    rig = Rig(sim, tmp_path)
    context = ok(sim.rt.get_context())
    models = [rig.load(Affine(a=at), Static({"x": (16,)}), f"m{at}") for at in range(THREADS)]

    def serve(at):
        ok(sim.rt.set_context(context))
        stream = ok(sim.rt.create_stream())
        inputs, outputs = rig.datasets(models[at])
        (source, x), (target, y) = rig.pinned(64), rig.pinned(64)
        right = 0
        for value in range(RUNS):
            x.view(np.float32)[:] = value
            ok(sim.rt.memcpy_async(rig.buffer(inputs, 0)[0], 64, source, 64, H2D, stream))
            ok(sim.mdl.execute_async(models[at], inputs, outputs, stream))
            ok(sim.rt.memcpy_async(target, 64, rig.buffer(outputs, 0)[0], 64, D2H, stream))
            ok(sim.rt.synchronize_stream_with_timeout(stream, 1000))
            right += bool(np.all(y.view(np.float32) == at * value + 1))
        return right

    with ThreadPoolExecutor(THREADS) as threads:
        assert list(threads.map(serve, range(THREADS))) == [RUNS] * THREADS
    sim.check()
    assert len(sim.executions) == THREADS * RUNS
