"""Image files become tensors as the description says, and a bad file is refused alone."""

import io
import json
import threading

import numpy as np
import pytest

pytest.importorskip("PIL")

from PIL import Image

from builders.images import encoded, gradient
from ge_backend.device.base import ROW_ERRORS, GraphSource
from ge_backend.engines.kinds.cpu import CpuDevice
from ge_backend.engines.preprocess.image import eight_bits
from ge_backend.engines.preprocess.image_file import MAX_PIXELS
from ge_backend.errors import GraphFailed, ModelError

NORMAL = {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}


@pytest.fixture
def load(tmp_path):
    graphs = []

    def loaded(**given):
        path = tmp_path / "image.json"
        path.write_text(json.dumps(given))
        graphs.append(CpuDevice().load(GraphSource.of(path, threads=2)))
        return graphs[-1]

    yield loaded
    for graph in graphs:
        graph.close()


def run(graph, *files, **places):
    given = np.array([[file] for file in files], object)
    return graph.run({"image": given}, places, exclusive=False)


def normalised(pixels, mean, std):
    return ((pixels / 255.0 - np.array(mean)) / np.array(std)).astype(np.float32)


def test_the_signature_of_images_of_one_size(load):
    """A crop or an exact size makes the result fixed; nothing has to tell sizes then."""
    for graph in (load(crop=[6, 8]), load(resize={"height": 6, "width": 8})):
        signature = graph.signature
        assert [spec.describe() for spec in signature.inputs] == ["BYTES [batch, 1]"]
        assert [spec.describe() for spec in signature.outputs] == ["FP32 [batch, 3, 6, 8]"]
        assert (signature.lengths, signature.axis_limits) == ({}, {})


def test_the_signature_of_images_with_sizes_of_their_own(load):
    """Two more outputs tell how high and wide each one is."""
    signature = load(resize={"shortest": 6, "longest": 9}, layout="HWC", channels="L").signature
    assert {spec.name: spec.describe() for spec in signature.outputs} == {
        "pixels": "FP32 [batch, height, width, 1]",
        "height": "INT64 [batch, 1]",
        "width": "INT64 [batch, 1]",
    }
    assert signature.lengths == {"height": "height", "width": "width"}
    assert signature.axis_limits == {"height": 9, "width": 9}


@pytest.mark.parametrize("layout", ["CHW", "HWC"])
def test_values_are_scaled_and_normalised(load, layout):
    """What a model sees are the file's own pixels; PNG loses nothing."""
    pixels = gradient(5, 7)
    got = run(load(layout=layout, **NORMAL), encoded(pixels))
    expected = normalised(pixels, **NORMAL)
    if layout == "CHW":
        expected = expected.transpose(2, 0, 1)
    np.testing.assert_allclose(got["pixels"], expected[np.newaxis], atol=1e-6)
    assert (got["height"].tolist(), got["width"].tolist()) == ([[5]], [[7]])


def test_resizing_and_cropping_are_those_of_pillow(load):
    """First the shorter side, then the middle; JPEG files are decoded as Pillow does."""
    pixels = gradient(60, 90)
    file = encoded(pixels, "JPEG", quality=95)
    got = run(load(resize={"shortest": 20}, crop=[16, 10], interpolation="bicubic"), file)
    decoded = Image.open(io.BytesIO(file))
    expected = np.asarray(decoded.resize((30, 20), Image.Resampling.BICUBIC))[2:18, 10:20]
    np.testing.assert_allclose(got["pixels"][0], expected.transpose(2, 0, 1) / 255, atol=1e-6)


def test_a_crop_larger_than_the_image_is_black_outside(load):
    """The result has its size whatever comes."""
    got = run(load(crop=[5, 4], layout="HWC"), encoded(np.full((3, 2, 3), 255, np.uint8)))
    white = np.zeros((5, 4), np.float32)
    white[1:4, 1:3] = 1
    assert got["pixels"][0, :, :, 0].tolist() == white.tolist()


@pytest.mark.parametrize("size", range(1, 12))
@pytest.mark.parametrize("crop", [4, 5])
def test_the_middle_is_that_of_torchvision(load, size, crop):
    """Of an odd difference one more is cut off at the even side, one less is black before."""
    lack, surplus = max(crop - size, 0), max(size - crop, 0)
    first = round(surplus / 2)
    pixels = np.arange(1, size + 1, dtype=np.uint8)
    expected = np.pad(pixels[first : first + crop], (lack // 2, lack - lack // 2))
    file = encoded(np.broadcast_to(pixels[:, None, None], (size, 1, 3)).copy())
    got = run(load(crop=[crop, 1], layout="HWC", channels="L"), file)
    assert np.rint(got["pixels"][0, :, 0, 0] * 255).tolist() == expected.tolist()


@pytest.mark.parametrize("channels", ["RGB", "BGR", "L"])
def test_channels(load, channels):
    """In the order that the model was trained with; any kind of file is converted."""
    pixels = gradient(4, 4)
    got = run(load(channels=channels, layout="HWC"), encoded(pixels))["pixels"][0]
    grey = np.asarray(Image.fromarray(pixels).convert("L"))[..., np.newaxis]
    expected = {"RGB": pixels, "BGR": pixels[..., ::-1], "L": grey}[channels]
    np.testing.assert_allclose(got, expected / 255, atol=1e-6)
    from_grey = run(load(channels=channels, layout="HWC"), encoded(pixels[..., 0]))["pixels"][0]
    np.testing.assert_allclose(from_grey[..., 0], pixels[..., 0] / 255, atol=1e-6)


@pytest.mark.parametrize("channels", ["RGB", "L"])
def test_grey_with_sixteen_bits_is_scaled(load, channels):
    """As Pillow scales colours of 16 bits; its own conversion of such greys makes them white."""
    ramp = np.linspace(0, 65535, 64).astype(np.uint16).reshape(8, 8)
    got = run(load(channels=channels, layout="HWC"), encoded(ramp))["pixels"][0]
    np.testing.assert_allclose(got[..., 0], (ramp >> 8) / 255, atol=1e-6)


@pytest.mark.parametrize(("mode", "dtype"), [("I;16", "<u2"), ("I;16B", ">u2"), ("I", "=i4")])
def test_each_mode_of_sixteen_bits_is_scaled(mode, dtype):
    """Which one a file is opened in depends on Pillow's version."""
    ramp = np.linspace(0, 65535, 64).astype(dtype).reshape(8, 8)
    opened = Image.frombytes(mode, (8, 8), ramp.tobytes())
    assert np.array_equal(np.asarray(eight_bits(opened)), ramp >> 8)


def test_photos_are_turned_upright(load):
    """Phones store how the camera was held instead of turning the pixels."""
    pixels = gradient(4, 6)
    turned = Image.Exif()
    turned[0x0112] = 6  # to be turned clockwise
    got = run(load(layout="HWC"), encoded(pixels, exif=turned))
    assert got["pixels"].shape == (1, 6, 4, 3)
    np.testing.assert_allclose(got["pixels"][0], np.rot90(pixels, -1) / 255, atol=1e-6)


def test_images_keep_their_own_sizes(load):
    """They lie in the corner of the largest, and the outputs tell where each one ends."""
    sizes = [(4, 9), (6, 3), (1, 1)]
    files = [encoded(gradient(*size, seed)) for seed, size in enumerate(sizes)]
    graph = load(layout="HWC", mean=[0.5] * 3)
    got = run(graph, *files)
    assert got["pixels"].shape == (3, 6, 9, 3)
    assert np.hstack([got["height"], got["width"]]).tolist() == [list(size) for size in sizes]
    for row, (file, (height, width)) in enumerate(zip(files, sizes, strict=True)):
        alone = run(graph, file)["pixels"][0]
        assert alone.shape == (height, width, 3)
        assert np.array_equal(got["pixels"][row, :height, :width], alone)
        assert not got["pixels"][row, height:].any()
        assert not got["pixels"][row, :, width:].any()


def test_results_are_written_where_the_caller_wants_them(load):
    """A place of the right shape is used, whatever it held; another one is not."""
    graph = load(crop=[2, 2])
    files = [encoded(gradient(3, 3)), encoded(gradient(2, 5))]
    place = np.full((2, 3, 2, 2), np.nan, np.float32)
    result = run(graph, *files, pixels=place)["pixels"]
    assert result is place
    assert np.array_equal(place, run(graph, *files)["pixels"])
    wrong = np.full((2, 3, 2), 7, np.float32)
    assert run(graph, *files, pixels=wrong)["pixels"] is not wrong
    assert (wrong == 7).all()


WHOLE = encoded(gradient(40, 40), "JPEG")
BROKEN = {
    "empty": b"",
    "text": b"not an image",
    "cut JPEG": WHOLE[: len(WHOLE) // 2],
    "cut PNG": encoded(gradient(40, 40))[:200],
    "GIF": encoded(gradient(4, 4), "GIF"),
    "too large": encoded(np.zeros((101, 100), np.uint8)),
}


@pytest.mark.parametrize("fixed", [False, True])
def test_a_broken_image_is_refused_alone(load, fixed):
    """Each row says why; the others are what they are without it."""
    graph = load(max_pixels=10_000, **({"crop": [8, 8]} if fixed else {}))
    good = encoded(gradient(9, 9))
    got = run(graph, good, *BROKEN.values(), good)
    reasons = [reason.decode() for reason in got[ROW_ERRORS]]
    assert [bool(reason) for reason in reasons] == [False, *[True] * len(BROKEN), False]
    assert "image of 0 bytes is not a JPEG or PNG file that can be read" in reasons[1]
    assert not [reason for reason in reasons if "0x" in reason]
    assert "100 x 101 pixels; at most 10000" in reasons[-2]
    alone = run(graph, good)
    assert ROW_ERRORS not in alone
    for row in (0, -1):
        assert np.array_equal(got["pixels"][row], alone["pixels"][0])
    assert not got["pixels"][1:-1].any()


def test_an_image_that_would_become_too_large_is_refused_alone(load, monkeypatch):
    """A file of a few bytes can be so long and thin that its shorter side makes it huge."""
    good, wide, high = map(encoded, (gradient(9, 9), gradient(1, 5000), gradient(5000, 1)))
    graph = load(resize={"shortest": 32}, crop=[8, 8], max_pixels=1_000_000)
    decoded = []
    monkeypatch.setattr(Image.Image, "load", lambda *_: decoded.append(True))
    got = run(graph, wide)
    assert "5000 x 1 pixels would become 160000 x 32; at most 1000000" in str(got[ROW_ERRORS][0])
    assert not decoded
    monkeypatch.undo()
    got = run(graph, good, high)
    assert "1 x 5000 pixels would become 32 x 160000" in str(got[ROW_ERRORS][1])
    assert not got[ROW_ERRORS][0]
    assert np.array_equal(got["pixels"][0], run(graph, good)["pixels"][0])


def test_what_a_result_may_have_does_not_bound_a_size_that_is_given(load):
    """`max_pixels` is there against clients, and they do not choose that one."""
    graph = load(resize={"height": 20, "width": 20}, max_pixels=100)
    assert ROW_ERRORS not in run(graph, encoded(gradient(9, 9)))


def test_pillow_takes_as_many_pixels_as_can_be_asked_for():
    """And no more, so a larger `max_pixels` would have no effect."""
    assert MAX_PIXELS == 2 * Image.MAX_IMAGE_PIXELS


@pytest.mark.parametrize("error", [MemoryError, OverflowError])
@pytest.mark.parametrize("step", ["convert", "resize"])
def test_an_image_without_memory_for_it_is_refused_alone(load, monkeypatch, error, step):
    """Its neighbours are served."""
    work = getattr(Image.Image, step)

    def short(image, *given):
        if image.width == 7:
            raise error
        return work(image, *given)

    monkeypatch.setattr(Image.Image, step, short)
    graph = load(crop=[8, 8])
    good, wide = encoded(gradient(9, 9)), encoded(gradient(9, 7))
    got = run(graph, good, wide)
    assert [bool(reason) for reason in got[ROW_ERRORS]] == [False, True]
    assert f"image of {len(wide)} bytes is too large" in str(got[ROW_ERRORS][1])
    assert np.array_equal(got["pixels"][0], run(graph, good)["pixels"][0])


def test_nothing_but_broken_images(load):
    """There is no size to go by then."""
    got = run(load(), b"", b"?")
    assert got["pixels"].shape == (2, 3, 0, 0)
    assert all(got[ROW_ERRORS])


def test_random_damage_is_refused_or_read(load):
    """Whatever a client sends, the run ends; only single rows are refused."""
    graph = load(crop=[8, 8])
    generator = np.random.default_rng(3)
    files = []
    for kind in ("JPEG", "PNG"):
        whole = np.frombuffer(encoded(gradient(24, 24), kind), np.uint8)
        for _ in range(200):
            damaged = whole.copy()
            damaged[generator.integers(2, len(whole), 4)] = generator.integers(0, 256, 4)
            files.append(damaged.tobytes())
    got = run(graph, *files)
    refused = sum(bool(reason) for reason in got[ROW_ERRORS])
    assert 0 < refused < len(files)


@pytest.mark.parametrize(
    ("inputs", "named"),
    [
        ({}, "takes the input image; got none"),
        ({"picture": np.array([[b""]], object)}, "got picture"),
        ({"image": np.array([[1]], np.uint8)}, "uint8"),
        ({"image": np.array([b""], object)}, r"object \(1,\)"),
    ],
)
def test_other_inputs_are_refused(load, inputs, named):
    """What came is named."""
    with pytest.raises(GraphFailed, match=named):
        load().run(inputs, {}, exclusive=False)


def test_another_file_is_refused(load):
    """As when it is read."""
    with pytest.raises(ModelError, match="'size' is unknown"):
        load(size=4)


def test_runs_from_several_threads_at_once(load):
    """Each gets its own images."""
    graph = load(layout="HWC")
    wrong = []
    start = threading.Barrier(3)

    def work(seed):
        pixels = gradient(seed + 3, seed + 4, seed)
        files = [encoded(pixels)] * 3
        start.wait()
        for _ in range(20):
            got = run(graph, *files)["pixels"]
            if not np.allclose(got, pixels / 255, atol=1e-6):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_needs_no_preparation(load):
    """Any shape runs, and none needs scratch memory of the device."""
    graph = load()
    graph.prepare({"image": np.array([[b""]], object)})
    assert graph.workspace_bytes({"image": (2, 1)}) == 0
    assert not graph.shape_policy.prepared
    assert graph.shape_policy.fixed == ()
