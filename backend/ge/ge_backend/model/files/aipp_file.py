"""A file that describes image preprocessing on an NPU (AIPP), in the form that `atc` reads.

    aipp_op {
      aipp_mode: static          # compiled in; or dynamic: told to ACL when the model is loaded
      input_format: RGB888_U8
      mean_chn_0: 124
    }

Source: hicann/ge docs/zh: ATC manual, AIPP, config_file_template; aclmdlGetInputDimsV2, table 1;
aclAippInputFormat.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from ge_backend.errors import ConfigError

__all__ = ["FORMATS", "Block", "image_dims", "read_blocks"]

Block = Mapping[str, str]
# Per format: what the height is multiplied by, in halves; the channels; ACL's number of it.
FORMATS: Mapping[str, tuple[int, int, int]] = {
    "YUV420SP_U8": (3, 1, 1),
    "XRGB8888_U8": (2, 4, 2),
    "RGB888_U8": (2, 3, 3),
    "YUV400_U8": (2, 1, 4),
    "ARGB8888_U8": (2, 4, 7),
    "YUYV_U8": (2, 2, 8),
    "YUV422SP_U8": (4, 1, 9),
}
_BLOCK = re.compile(r"aipp_op\s*\{(?P<body>[^}]*)\}")
_FIELD = re.compile(r"(?P<key>\w+)\s*:\s*\"?(?P<value>[\w.+-]+)\"?")
_COMMENT = re.compile(r"#[^\n]*")


def read_blocks(path: Path, mode: str, key: str) -> Sequence[Block]:
    """Return the blocks of a file, one per input, as texts by field.

    Args:
        path: the file.
        mode: which every block must have: `static` or `dynamic`.
        key: the option that names the file, for messages.

    Raises:
        ConfigError: it cannot be read, or does not say what it must.
    """
    try:
        # Only comments are ever in another encoding, such as GBK.
        text = _COMMENT.sub("", path.read_text(encoding="utf-8", errors="replace"))
    except OSError as error:
        raise ConfigError(f"option {key!r}: {error}") from error
    blocks = [
        {field["key"]: field["value"] for field in _FIELD.finditer(block["body"])}
        for block in _BLOCK.finditer(text)
    ]
    if not blocks:
        raise ConfigError(f"{path}: there is no aipp_op {{ … }} in it")
    for block in blocks:
        if block.get("aipp_mode") != mode:
            raise ConfigError(
                f"{path}: aipp_mode is {block.get('aipp_mode', 'not said')}; {key} takes {mode}: "
                "static ones are compiled from ONNX (atc.insert_op_conf), dynamic ones are for a "
                "model.om that was compiled so (npu.aipp)"
            )
        if block.get("input_format") not in FORMATS:
            raise ConfigError(
                f"{path}: input_format is {block.get('input_format', 'not said')!r}; expected one "
                f"of {', '.join(FORMATS)}"
            )
    return blocks


def image_dims(block: Block, height: int, width: int, path: str) -> tuple[int, int, int]:
    """Return (height, width, channels) of the bytes that an image has.

    Height and width are those of the model itself, 0 where it does not say; the block says the
    format, and the size of the source where that is another one.

    Raises:
        ConfigError: the size is not known, or the format does not have it.
    """
    height = int(block.get("src_image_size_h", "0")) or height
    width = int(block.get("src_image_size_w", "0")) or width
    halves, channels, _ = FORMATS[block["input_format"]]
    if min(height, width) < 1 or height * halves % 2:
        raise ConfigError(
            f"{path}: a height of {height} and a width of {width} cannot be "
            f"{block['input_format']}; say src_image_size_h and src_image_size_w"
        )
    return height * halves // 2, width, channels
