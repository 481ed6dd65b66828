"""Image preprocessing whose parameters ACL is told when a model is loaded (dynamic AIPP).

Source: the open pyACL source (mdl_wrap: set_aipp_…), CANN's pages on each call, and the ATC manual,
AIPP, for what is meant by a field that is left out.
"""

from __future__ import annotations

from collections.abc import Iterator

from ge_backend.engines.acl.models import AippCall
from ge_backend.model.files.aipp_file import FORMATS, Block

__all__ = ["aipp_calls"]

CHANNELS = range(4)
ON = ("true", "1")


def aipp_calls(block: Block, rows: int) -> Iterator[AippCall]:
    """Give the calls of `acl.mdl` that say what is done to images, without their first argument.

    Args:
        block: what the file says.
        rows: the most images of a run; each is told by itself.
    """

    def number(key: str, default: int = 0) -> int:
        return int(block.get(key, default))

    def switch(key: str) -> int:
        return int(block.get(key, "false") in ON)

    yield "set_aipp_input_format", (FORMATS[block["input_format"]][2],)
    size = number("src_image_size_w"), number("src_image_size_h")
    yield "set_aipp_src_image_size", size
    if switch("csc_switch"):
        matrix = [number(f"matrix_r{row}c{column}") for row in range(3) for column in range(3)]
        outputs = [number(f"output_bias_{at}") for at in range(3)]
        inputs = [number(f"input_bias_{at}") for at in range(3)]
        yield "set_aipp_csc_params", (1, *matrix, *outputs, *inputs)
    yield "set_aipp_rbuv_swap_switch", (switch("rbuv_swap_switch"),)
    yield "set_aipp_ax_swap_switch", (switch("ax_swap_switch"),)
    crop = [number("load_start_pos_w"), number("load_start_pos_h")]
    cut = [number("crop_size_w"), number("crop_size_h")]
    sides = [number(f"{side}_padding_size") for side in ("top", "bottom", "left", "right")]
    for row in range(rows):
        if switch("crop"):
            yield "set_aipp_crop_params", (1, *crop, *cut, row)
        if switch("padding"):
            yield "set_aipp_padding_params", (1, *sides, row)
        mean = [number(f"mean_chn_{at}") for at in CHANNELS]
        least = [float(block.get(f"min_chn_{at}", 0)) for at in CHANNELS]
        scale = [float(block.get(f"var_reci_chn_{at}", 1)) for at in CHANNELS]
        yield "set_aipp_dtc_pixel_mean", (*mean, row)
        yield "set_aipp_dtc_pixel_min", (*least, row)
        yield "set_aipp_pixel_var_reci", (*scale, row)
