"""Runs: their results, what does not fit, and what must not happen at the same time."""

import numpy as np
import pytest

from acl_simulator import Affine, Echo, Encoder, MatMul, Misuse, Static, Sums
from acl_simulator.codes import DATA_TYPES
from builders.acl_rig import D2H, H2D, ok

X = np.arange(16, dtype=np.float32).reshape(2, 8)
STATIC = Static({"x": (2, 8)})


@pytest.mark.parametrize("graph", [Echo(), Affine(), Sums(), MatMul()], ids=repr)
def test_models_compute_their_graphs(rig, sim, graph):
    (y,) = rig.run(rig.load(graph, STATIC), {"x": X})
    assert np.array_equal(y, graph.expected(x=X)["y"])
    sim.check()


@pytest.mark.parametrize("name", [name for name, _ in DATA_TYPES.values()])
def test_every_type_passes(rig, name):
    dtype = dict(DATA_TYPES.values())[name]
    x = np.arange(6).reshape(2, 3).astype(dtype)
    (y,) = rig.run(rig.load(Echo(name), Static({"x": (2, 3)})), {"x": x})
    assert np.array_equal(y, x)


def test_a_scalar_passes(rig):
    (y,) = rig.run(rig.load(Echo(), Static({"x": ()})), {"x": np.float32(3)})
    assert y == 3
    assert y.shape == ()


def test_a_run_may_be_waited_for(rig, sim):
    model = rig.load(Affine(), STATIC)
    inputs, outputs = rig.datasets(model)
    rig.fill(inputs, X)
    ok(sim.mdl.execute(model, inputs, outputs))
    assert np.array_equal(rig.results(model, outputs)[0], 2 * X + 1)
    config = sim.mdl.create_exec_config_handle()
    ok(sim.mdl.set_exec_config_opt(config, 0, 1))
    ok(sim.mdl.execute_v2(model, inputs, outputs, rig.stream, config))
    ok(sim.mdl.destroy_exec_config_handle(config))


def test_an_unknown_model(rig, sim):
    assert sim.mdl.execute(7, *[rig.dataset()] * 2) == 145003


class TestSizes:
    """Static models: what is smaller, larger, or missing."""

    @pytest.fixture
    def model(self, rig):
        return rig.load(Affine(), Static({"x": (64,)}))

    @pytest.mark.parametrize(("size", "code"), [(256, 0), (192, 0), (191, 145000), (512, 0)])
    def test_an_input_may_be_64_bytes_short(self, rig, sim, model, size, code):
        outputs = rig.dataset((rig.device(256), 256))
        assert sim.mdl.execute(model, rig.dataset((rig.device(512), size)), outputs) == code
        assert code == 0 or "E13025" in sim.get_recent_err_msg()

    def test_what_is_short_is_read_all_the_same(self, rig, sim, model):
        with pytest.raises(Misuse, match="after 192 bytes"):
            sim.mdl.execute(
                model, rig.dataset((rig.device(192), 192)), rig.dataset((rig.device(256), 256))
            )

    @pytest.mark.parametrize(("size", "code"), [(255, 145000), (512, 0)])
    def test_an_output_is_not_short(self, rig, sim, model, size, code):
        inputs = rig.dataset((rig.device(256), 256))
        assert sim.mdl.execute(model, inputs, rig.dataset((rig.device(512), size))) == code

    def test_an_input_of_no_bytes_is_skipped(self, rig, sim, model):
        inputs, outputs = (
            rig.dataset((rig.device(256), 0)),
            rig.dataset((rig.device(256), 256)),
        )
        ok(sim.mdl.execute(model, inputs, outputs))

    def test_null_buffers_are_refused(self, rig, sim, model):
        good = rig.dataset((rig.device(256), 256))
        assert sim.mdl.execute(model, rig.dataset((0, 256)), good) == 100000
        assert sim.mdl.execute(model, good, rig.dataset((0, 0))) == 100000

    def test_counts_have_to_match(self, rig, sim, model):
        good = rig.dataset((rig.device(256), 256))
        assert sim.mdl.execute(model, rig.dataset(), good) == 145000
        assert sim.mdl.execute(model, good, rig.dataset()) == 145000


class TestPlaces:
    """Buffers lie on the device, aligned, and apart."""

    @pytest.fixture
    def model(self, rig):
        return rig.load(Affine(), Static({"x": (16,)}))

    def test_not_on_the_host(self, rig, sim, model):
        with pytest.raises(Misuse, match="not on its device"):
            sim.mdl.execute(
                model, rig.dataset((rig.pinned(64)[0], 64)), rig.dataset((rig.device(64), 64))
            )

    def test_not_on_another_device(self, rig, sim, model):
        context = ok(sim.rt.get_context())
        ok(sim.rt.set_device(1))
        elsewhere = rig.device(64)
        ok(sim.rt.set_context(context))
        with pytest.raises(Misuse, match="not on its device"):
            sim.mdl.execute(model, rig.dataset((elsewhere, 64)), rig.dataset((rig.device(64), 64)))

    def test_not_anywhere(self, rig, sim, model):
        with pytest.raises(Misuse, match="64-byte aligned"):
            sim.mdl.execute(
                model, rig.dataset((rig.device(96) + 32, 64)), rig.dataset((rig.device(64), 64))
            )

    @pytest.mark.parametrize(("offset", "fits"), [(0, False), (64, False), (128, True)])
    def test_outputs_need_room_behind(self, rig, sim, model, offset, fits):
        block = rig.device(192)
        datasets = rig.dataset((block + offset, 64)), rig.dataset((block, 64))
        if fits:
            ok(sim.mdl.execute(model, *datasets))
        else:
            with pytest.raises(Misuse, match="overlaps input x"):
                sim.mdl.execute(model, *datasets)

    def test_not_on_weights(self, rig, sim, model):
        path = rig.write(MatMul(), STATIC, "weighty")
        weights = rig.device(128)
        ok(sim.mdl.load_from_file_with_mem(path, 0, 0, weights, 128))
        with pytest.raises(Misuse, match="overwrites the weight memory of weighty"):
            sim.mdl.execute(model, rig.dataset((rig.device(64), 64)), rig.dataset((weights, 64)))


class TestTogether:
    """What must not be in flight at the same time."""

    @pytest.fixture
    def other(self, sim, rig):
        return ok(sim.rt.create_stream())

    @pytest.fixture
    def sharing(self, rig, sim):
        """Two models on one work memory."""
        work = rig.device(64)
        paths = [rig.write(g, STATIC, n) for g, n in ((Affine(), "one"), (Sums(), "two"))]
        return [ok(sim.mdl.load_from_file_with_mem(p, work, 64, 0, 0)) for p in paths]

    def test_models_on_one_work_memory_are_not_on_two_streams(self, rig, sim, sharing, other):
        one, two = sharing
        ok(sim.mdl.execute_async(one, *rig.datasets(one), rig.stream))
        with pytest.raises(Misuse, match="the work memory is also the work memory of run of one"):
            sim.mdl.execute_async(two, *rig.datasets(two), other)
        assert len(sim.misuses) == 1

    def test_on_one_stream_they_take_turns(self, rig, sim, sharing):
        results = []
        for model in sharing:
            inputs, outputs = rig.datasets(model)
            rig.fill(inputs, X)
            ok(sim.mdl.execute_async(model, inputs, outputs, rig.stream))
            results.append((model, outputs))
        ok(sim.rt.synchronize_stream(rig.stream))
        assert np.array_equal(rig.results(*results[0])[0], 2 * X + 1)
        assert np.array_equal(rig.results(*results[1])[0], X.sum(axis=1))

    def test_one_model_is_not_on_two_streams(self, rig, sim, other):
        model = rig.load(Affine(), STATIC)
        ok(sim.mdl.execute_async(model, *rig.datasets(model), rig.stream))
        with pytest.raises(Misuse, match="model model"):
            sim.mdl.execute_async(model, *rig.datasets(model), other)

    @pytest.mark.parametrize("at_once_first", [True, False])
    def test_one_model_is_run_in_one_way(self, rig, sim, at_once_first):
        model = rig.load(Affine(), STATIC)
        calls = [
            lambda: sim.mdl.execute(model, *rig.datasets(model)),
            lambda: sim.mdl.execute_async(model, *rig.datasets(model), rig.stream),
        ]
        first, second = calls if at_once_first else calls[::-1]
        ok(first())
        ok(sim.rt.synchronize_stream(rig.stream))
        assert second() == 545000
        ok(first())

    def test_models_apart_run_side_by_side(self, rig, sim, other):
        models = [rig.load(graph, STATIC, graph.__class__.__name__) for graph in (Affine(), Sums())]
        sets = [rig.datasets(model) for model in models]
        for model, (inputs, outputs), stream in zip(models, sets, (rig.stream, other), strict=True):
            rig.fill(inputs, X)
            ok(sim.mdl.execute_async(model, inputs, outputs, stream))
        assert len(sim.in_flight()) == 2
        ok(sim.rt.synchronize_device())
        assert np.array_equal(rig.results(models[1], sets[1][1])[0], X.sum(axis=1))

    def test_inputs_are_read_when_the_run_begins(self, rig, sim):
        model = rig.load(Affine(), STATIC)
        inputs, outputs = rig.datasets(model)
        address, size = rig.buffer(inputs, 0)
        source, view = rig.pinned(size)
        view.view(np.float32)[:] = 0
        ok(sim.rt.memcpy_async(address, size, source, size, H2D, rig.stream))
        ok(sim.mdl.execute_async(model, inputs, outputs, rig.stream))
        view.view(np.float32)[:] = 5
        ok(sim.rt.synchronize_stream(rig.stream))
        assert np.all(rig.results(model, outputs)[0] == 11)

    def test_addresses_are_those_of_the_call(self, rig, sim):
        model = rig.load(Affine(), STATIC)
        inputs, outputs = rig.datasets(model)
        rig.fill(inputs, X)
        address, size = rig.buffer(outputs, 0)
        ok(sim.mdl.execute_async(model, inputs, outputs, rig.stream))
        for dataset in (inputs, outputs):
            buffer = sim.mdl.get_dataset_buffer(dataset, 0)
            ok(sim.update_data_buffer(buffer, rig.device(size), size))
        ok(sim.rt.synchronize_stream(rig.stream))
        assert np.array_equal(rig.download(address, np.float32, X.shape), 2 * X + 1)

    def test_an_output_read_too_early_is_a_race(self, rig, sim):
        model = rig.load(Affine(), STATIC)
        inputs, outputs = rig.datasets(model)
        ok(sim.mdl.execute_async(model, inputs, outputs, rig.stream))
        target, _ = rig.pinned(64)
        with pytest.raises(Misuse, match="output Affine_0:0:y"):
            sim.rt.memcpy(target, 64, rig.buffer(outputs, 0)[0], 64, D2H)


def test_work_memory_is_scribbled_over(rig, sim):
    path = rig.write(Affine(), STATIC, work_bytes=128)
    work = rig.device(128)
    model = ok(sim.mdl.load_from_file_with_mem(path, work, 128, 0, 0))
    rig.upload(work, np.zeros(128, np.uint8))
    rig.run(model, {"x": X})
    assert set(rig.download(work, np.uint8, 128)) == {0x5A}


def test_spoilt_work_memory_spoils_the_result(rig, sim):
    """No caller can do this without another misuse, so the test reaches behind the calls."""
    path = rig.write(Affine(), STATIC)
    work = rig.device(64)
    model = ok(sim.mdl.load_from_file_with_mem(path, work, 64, 0, 0))
    inputs, outputs = rig.datasets(model)
    rig.fill(inputs, X)
    ok(sim.mdl.execute_async(model, inputs, outputs, rig.stream))
    assert sim.rt.synchronize_stream_with_timeout(rig.stream, 0) == 507046  # it has begun
    sim._machine.memory.view(work, 4)[:] = 0xFF
    ok(sim.rt.synchronize_stream(rig.stream))
    with pytest.raises(Misuse, match="its work memory was overwritten"):
        sim.check()
    assert not np.array_equal(rig.results(model, outputs)[0], 2 * X + 1)


def test_weights_are_read_from_device_memory(rig, sim):
    path = rig.write(Affine(), STATIC)
    weights = rig.device(128)
    model = ok(sim.mdl.load_from_file_with_mem(path, 0, 0, weights, 128))
    sim._machine.memory.view(weights, 8).view(np.float64)[:] = 10
    assert np.array_equal(rig.run(model, {"x": X})[0], 10 * X + 1)


def test_bad_inputs_fail_on_the_device(rig, sim):
    shapes = Static({"input_ids": (1, 4), "attention_mask": (1, 4)})
    model = rig.load(Encoder(), shapes)
    datasets = rig.datasets(model)
    rig.fill(datasets[0], np.full((1, 4), 1000), np.ones((1, 4), np.int64))
    ok(sim.mdl.execute_async(model, *datasets, rig.stream))
    assert sim.rt.synchronize_stream(rig.stream) == 507015
    assert "an id outside" in sim.get_recent_err_msg()


def test_outputs_get_descs_only_where_inputs_had_them(rig, sim):
    model = rig.load(Sums(), STATIC)
    inputs, outputs = rig.datasets(model)
    ok(sim.mdl.execute(model, inputs, outputs))
    assert sim.mdl.get_dataset_tensor_desc(outputs, 0) == 0
    desc = sim.create_tensor_desc(0, [2, 8], 2)
    assert sim.mdl.set_dataset_tensor_desc(inputs, desc, 0) == (inputs, 0)
    sim.destroy_tensor_desc(desc)
    ok(sim.mdl.execute(model, inputs, outputs))
    given = sim.mdl.get_dataset_tensor_desc(outputs, 0)
    assert ok(sim.get_tensor_desc_dim_v2(given, 0)) == 2
    with pytest.raises(Misuse, match="a dataset owns"):
        sim.destroy_tensor_desc(given)
