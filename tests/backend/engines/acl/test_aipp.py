"""Which calls tell ACL what is done to images."""

from acl_simulator.facts import CALLS
from ge_backend.engines.acl.aipp import aipp_calls

BLOCK = {
    "input_format": "YUV420SP_U8",
    "src_image_size_w": "640",
    "src_image_size_h": "480",
    "csc_switch": "true",
    "matrix_r0c0": "256",
    "matrix_r2c2": "7",
    "output_bias_0": "1",
    "input_bias_2": "128",
    "rbuv_swap_switch": "true",
    "crop": "true",
    "load_start_pos_w": "10",
    "load_start_pos_h": "20",
    "crop_size_w": "224",
    "crop_size_h": "225",
    "padding": "true",
    "left_padding_size": "3",
    "mean_chn_1": "117",
    "min_chn_2": "0.5",
    "var_reci_chn_0": "0.25",
}


def test_everything_that_the_file_says_is_told():
    """In pyACL's order of arguments; what is left out has CANN's default."""
    calls = dict(aipp_calls(BLOCK, 1))
    assert calls == {
        "set_aipp_input_format": (1,),
        "set_aipp_src_image_size": (640, 480),
        "set_aipp_csc_params": (1, 256, 0, 0, 0, 0, 0, 0, 0, 7, 1, 0, 0, 0, 0, 128),
        "set_aipp_rbuv_swap_switch": (1,),
        "set_aipp_ax_swap_switch": (0,),
        "set_aipp_crop_params": (1, 10, 20, 224, 225, 0),
        "set_aipp_padding_params": (1, 0, 0, 3, 0, 0),
        "set_aipp_dtc_pixel_mean": (0, 117, 0, 0, 0),
        "set_aipp_dtc_pixel_min": (0.0, 0.0, 0.5, 0.0, 0),
        "set_aipp_pixel_var_reci": (0.25, 1.0, 1.0, 1.0, 0),
    }


def test_each_image_of_a_batch_is_told():
    """Those parameters that belong to one."""
    names = [name for name, _ in aipp_calls({"input_format": "RGB888_U8"}, 3)]
    assert names.count("set_aipp_dtc_pixel_mean") == 3
    assert names.count("set_aipp_src_image_size") == 1
    assert "set_aipp_crop_params" not in names


def test_each_call_takes_so_many_arguments():
    """As pyACL's source has them, the handle before ours."""
    for name, arguments in aipp_calls(BLOCK, 2):
        assert CALLS[f"mdl.{name}"].arity == (len(arguments) + 1,) * 2
