"""What a photo model takes once its preprocessing is compiled in."""

from pathlib import Path

import pytest

from ge_backend.engines.atc.aipp import preprocessing_of
from ge_backend.engines.atc.options import CompileRequest
from ge_backend.errors import ConfigError, ModelError
from ge_backend.tensors import Signature, TensorSpec, data_type


def spec(name, *dims, axes=None):
    named = axes or ("batch", *("" for _ in dims[1:]))
    return TensorSpec(name=name, dtype=data_type("FP32"), dims=dims, axes=named[: len(dims)])


PHOTOS, SCALE = spec("photos", -1, 3, 224, 192), spec("scale")


def request(folder: Path, text: str | None, *inputs: TensorSpec) -> CompileRequest:
    if text is not None:
        (folder / "aipp.cfg").write_text(text)
    return CompileRequest(
        model=folder / "model.onnx",
        inputs=inputs or (PHOTOS,),
        shapes=(),
        soc="Ascend310P3",
        options=(("ge.insertOpFile", "aipp.cfg"),),
    )


def static(**fields):
    lines = "\n".join(f"  {key} : {value}  # why" for key, value in fields.items())
    return f"aipp_op {{\n  aipp_mode: static\n{lines}\n}}\n"


@pytest.mark.parametrize(
    ("kind", "dims"),
    [
        ("YUV420SP_U8", (-1, 336, 192, 1)),
        ("XRGB8888_U8", (-1, 224, 192, 4)),
        ("RGB888_U8", (-1, 224, 192, 3)),
        ("YUV400_U8", (-1, 224, 192, 1)),
        ("ARGB8888_U8", (-1, 224, 192, 4)),
        ("YUYV_U8", (-1, 224, 192, 2)),
        ("YUV422SP_U8", (-1, 448, 192, 1)),
    ],
)
def test_the_input_is_as_acl_describes_it(tmp_path, kind, dims):
    """UINT8, and the sizes of aclmdlGetInputDimsV2; what is compiled keeps the model's own."""
    images = preprocessing_of(request(tmp_path, static(input_format=kind)))
    (taken,) = images.signature(Signature(inputs=(PHOTOS,), outputs=(), axis_limits={})).inputs
    assert (taken.name, taken.dtype.name, taken.dims) == ("photos", "UINT8", dims)
    assert taken.axes == ("batch", "", "", "")
    assert images.shapes({"photos": (8, *dims[1:])}) == {"photos": (8, 3, 224, 192)}


def test_images_may_be_larger_than_what_is_cut_out_of_them(tmp_path):
    """The size of the source is what comes."""
    text = static(input_format="RGB888_U8", src_image_size_w=256, src_image_size_h=300, crop="true")
    images = preprocessing_of(request(tmp_path, text))
    assert images.specs["photos"].dims == (-1, 300, 256, 3)


def test_other_inputs_stay(tmp_path):
    """Each block says which input it is for."""
    text = static(input_format="RGB888_U8", related_input_rank=1)
    images = preprocessing_of(request(tmp_path, text, SCALE, PHOTOS))
    signature = Signature(inputs=(SCALE, PHOTOS), outputs=(), axis_limits={})
    assert images.signature(signature).inputs[0] is SCALE
    bucket = {"scale": (), "photos": (2, 224, 192, 3)}
    assert images.shapes(bucket) == {"scale": (), "photos": (2, 3, 224, 192)}


def test_without_such_a_file_nothing_changes(tmp_path):
    """Neither the signature nor the buckets."""
    plain = CompileRequest(model=tmp_path / "m.onnx", inputs=(PHOTOS,), shapes=(), soc="x")
    images = preprocessing_of(plain)
    signature = Signature(inputs=(PHOTOS,), outputs=(), axis_limits={})
    assert images.signature(signature) == signature
    assert images.shapes({"photos": (1, 3, 224, 192)}) == {"photos": (1, 3, 224, 192)}


@pytest.mark.parametrize(
    ("text", "error", "said"),
    [
        (None, ConfigError, "insert_op_conf.*No such file"),
        ("nothing", ConfigError, "no aipp_op"),
        ("aipp_op { aipp_mode: dynamic }", ConfigError, "takes static.*npu.aipp"),
        ("aipp_op { input_format: RGB888_U8 }", ConfigError, "aipp_mode is not said"),
        (static(), ConfigError, "input_format is 'not said'"),
        (static(input_format="RAW10"), ConfigError, "'RAW10'; expected one of YUV420SP_U8"),
        (static(input_format="RGB888_U8", related_input_rank=1), ModelError, "has 1 inputs"),
        (
            static(input_format="YUV420SP_U8", src_image_size_h=5, src_image_size_w=4),
            ConfigError,
            "a height of 5",
        ),
    ],
)
def test_files_that_do_not_say_what_they_must(tmp_path, text, error, said):
    """The error names the file, what it says, and what it must."""
    with pytest.raises(error, match=said):
        preprocessing_of(request(tmp_path, text))


@pytest.mark.parametrize("dims", [(-1, 3, -1, 192), (-1, 3, 224)])
def test_an_input_that_is_no_image_of_one_size(tmp_path, dims):
    """Its layout must be known."""
    text = static(input_format="RGB888_U8")
    with pytest.raises(ModelError, match=r"'x', which is FP32 \[batch, 3"):
        preprocessing_of(request(tmp_path, text, spec("x", *dims)))
