"""Files that describe image preprocessing; what becomes of an input is in atc/test_aipp.py."""

import pytest

from ge_backend.errors import ConfigError
from ge_backend.model.files.aipp_file import image_dims, read_blocks


def test_fields_are_read_with_and_without_spaces_quotes_and_comments(tmp_path):
    """One block per input, in their order."""
    path = tmp_path / "aipp.cfg"
    path.write_text(
        '# photos\naipp_op{aipp_mode:dynamic input_format : "RGB888_U8" var_reci_chn_0:-1.5e-2}\n'
        "aipp_op {\n aipp_mode: dynamic # yes\n input_format: YUV400_U8\n}"
    )
    first, second = read_blocks(path, "dynamic", "npu.aipp")
    assert first["var_reci_chn_0"] == "-1.5e-2"
    assert (first["input_format"], second["input_format"]) == ("RGB888_U8", "YUV400_U8")


def test_a_comment_may_be_in_another_encoding(tmp_path):
    """As an editor in China writes it."""
    path = tmp_path / "aipp.cfg"
    fields = "aipp_op { aipp_mode: static\ninput_format: RGB888_U8 }"
    path.write_bytes(f"# 均值\n{fields} # 图像".encode("gbk"))
    assert read_blocks(path, "static", "x") == [
        {"aipp_mode": "static", "input_format": "RGB888_U8"}
    ]


def test_a_size_that_nobody_says():
    """A model with dynamic AIPP leaves it open, so the file must have it."""
    block = {"input_format": "RGB888_U8"}
    assert image_dims(block, 4, 6, "m") == (4, 6, 3)
    with pytest.raises(ConfigError, match="say src_image_size_h"):
        image_dims(block, 0, 0, "m")
