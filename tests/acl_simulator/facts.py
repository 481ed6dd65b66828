"""pyACL's calls: what each takes and what it returns, as one table.

Transcribed from Huawei's open pyACL source and its documents. The simulator is built from this
table, and tests hold both the simulator and the calls of the backend against it.

Arguments, one letter each, as CPython parses them; `|` begins the optional ones:
    k  pointer, size, handle, index: an `int` and nothing else, taken modulo 2**64
    K  as k
    i  anything with `__index__`, 32 bits signed      b, h  likewise      B  unsigned      f  float
    I  anything with `__index__`, taken modulo 2**32
    s  str      S  bytes (else ValueError)      L  list      D  dict      T  tuple      O  anything

Returns, the value(s) first and `ret` last. Where a call fails, `ptr`, `id` and `int` are 0, `dict`
is {}, `str` is "", `text` is None, `echo` is the first argument, and the slots of `dicts` are unset
(touching them crashes the interpreter).
"""

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["CALLS", "Call"]


@dataclass(frozen=True, slots=True)
class Call:
    """What one call takes and returns.

    Attributes:
        arguments: one letter per argument.
        returns: the kinds of what comes back; empty for None.
    """

    arguments: str
    returns: tuple[str, ...]

    @property
    def arity(self) -> tuple[int, int]:
        """The fewest and the most arguments."""
        required, _, optional = self.arguments.partition("|")
        return len(required), len(required) + len(optional)


def _calls(prefix: str, rows: str) -> dict[str, Call]:
    """Return the calls of lines `name arguments -> returns`; `-` stands for nothing."""
    calls = {}
    for row in rows.strip().splitlines():
        name, arguments, _, *returns = row.split()
        calls[prefix + name] = Call(
            "" if arguments == "-" else arguments, tuple(kind for kind in returns if kind != "-")
        )
    return calls


_SYSTEM = """
    init                     |s   -> ret
    finalize                 -    -> ret
    finalize_reference       -    -> int ret
    get_version              -    -> int int int ret
    get_soc_name             -    -> text
    get_recent_err_msg       -    -> text
    app_log                  is   -> -
    data_type_size           i    -> int
    create_data_buffer       kk   -> ptr
    destroy_data_buffer      k    -> ret
    get_data_buffer_addr     k    -> ptr
    get_data_buffer_size     k    -> int
    get_data_buffer_size_v2  k    -> int
    update_data_buffer       kkk  -> ret
    create_tensor_desc       iLi  -> ptr
    destroy_tensor_desc      k    -> -
    get_tensor_desc_type     k    -> int
    get_tensor_desc_format   k    -> int
    get_tensor_desc_size     k    -> int
    get_tensor_desc_element_count k -> int
    get_tensor_desc_num_dims k    -> int
    get_tensor_desc_dim      kk   -> int
    get_tensor_desc_dim_v2   kk   -> int ret
"""

_RT = """
    set_device                      i       -> ret
    reset_device                    i       -> ret
    reset_device_force              i       -> ret
    get_device                      -       -> id ret
    get_device_count                -       -> int ret
    get_run_mode                    -       -> int ret
    create_context                  i       -> ptr ret
    get_context                     -       -> ptr ret
    set_context                     k       -> ret
    destroy_context                 k       -> ret
    create_stream                   -       -> ptr ret
    create_stream_with_config       II      -> ptr ret
    destroy_stream                  k       -> ret
    destroy_stream_force            k       -> ret
    synchronize_stream              k       -> ret
    synchronize_stream_with_timeout ki      -> ret
    synchronize_device              -       -> ret
    stream_query                    k       -> int ret
    get_stream_available_num        -       -> int ret
    set_stream_res_limit            kiI     -> ret
    get_stream_res_limit            ki      -> int ret
    reset_stream_res_limit          k       -> ret
    use_stream_res_in_current_thread k      -> ret
    set_device_res_limit            iiI     -> ret
    malloc                          ki      -> ptr ret
    malloc_align32                  ki      -> ptr ret
    malloc_cached                   ki      -> ptr ret
    free                            k       -> ret
    malloc_host                     k       -> ptr ret
    free_host                       k       -> ret
    memset                          kkik    -> ret
    memset_async                    kkikk   -> ret
    memcpy                          kkkki   -> ret
    memcpy_async                    kkkkik  -> ret
    memcpy_async_with_condition     kkkkik  -> ret
    get_mem_info                    i       -> int int ret
    get_device_utilization_rate     i       -> dict ret
    query_device_status             i       -> int ret
    get_last_error                  i       -> int
    create_event                    -       -> ptr ret
    create_event_with_flag          I       -> ptr ret
    destroy_event                   k       -> ret
    record_event                    kk      -> ret
    synchronize_event               k       -> ret
    synchronize_event_with_timeout  ki      -> ret
    stream_wait_event               kk      -> ret
    event_elapsed_time              kk      -> float ret
    device_can_access_peer          ii      -> int ret
"""

_MDL = """
    load_from_file                s       -> id ret
    load_from_mem                 kk      -> id ret
    load_from_file_with_mem       skkkk   -> id ret
    load_from_mem_with_mem        kkkkkk  -> id ret
    unload                        I       -> ret
    query_size                    s       -> int int ret
    query_size_from_mem           kk      -> int int ret
    create_desc                   -       -> ptr
    get_desc                      kI      -> ret
    get_desc_from_file            ks      -> ret
    get_desc_from_mem             kkk     -> ret
    destroy_desc                  k       -> ret
    get_num_inputs                k       -> int
    get_num_outputs               k       -> int
    get_input_size_by_index       kk      -> int
    get_output_size_by_index      kk      -> int
    get_input_name_by_index       kk      -> str
    get_output_name_by_index      kk      -> str
    get_input_index_by_name       ks      -> id ret
    get_output_index_by_name      ks      -> id ret
    get_input_data_type           kk      -> int
    get_output_data_type          kk      -> int
    get_input_format              kk      -> int
    get_output_format             kk      -> int
    get_input_dims                kk      -> dict ret
    get_input_dims_v2             kk      -> dict ret
    get_output_dims               kk      -> dict ret
    get_cur_output_dims           kk      -> dict ret
    get_input_dims_range          kk      -> dict ret
    get_dynamic_batch             k       -> dict ret
    get_dynamic_hw                kk      -> dict ret
    get_input_dynamic_gear_count  kk      -> int ret
    get_input_dynamic_dims        kkk     -> dicts ret
    set_dynamic_batch_size        IkkK    -> ret
    set_dynamic_hw_size           IkkKK   -> ret
    create_aipp                   K    -> ptr
    destroy_aipp                  k    -> ret
    set_aipp_input_format         kI   -> ret
    set_aipp_src_image_size       kii  -> ret
    set_aipp_csc_params           kbhhhhhhhhhBBBBBB -> ret
    set_aipp_rbuv_swap_switch     kb   -> ret
    set_aipp_ax_swap_switch       kb   -> ret
    set_aipp_crop_params          kbiiiiK -> ret
    set_aipp_padding_params       kbiiiiK -> ret
    set_aipp_dtc_pixel_mean       khhhhK -> ret
    set_aipp_dtc_pixel_min        kffffK -> ret
    set_aipp_pixel_var_reci       kffffK -> ret
    set_input_aipp                Ikkk -> ret
    set_input_dynamic_dims        IkkD    -> ret
    create_dataset                -       -> ptr
    add_dataset_buffer            kk      -> echo ret
    get_dataset_num_buffers       k       -> int
    get_dataset_buffer            kk      -> ptr
    set_dataset_tensor_desc       kkk     -> echo ret
    get_dataset_tensor_desc       kk      -> ptr
    destroy_dataset               k       -> ret
    execute                       Ikk     -> ret
    execute_async                 Ikkk    -> ret
    execute_v2                    Ikkkk   -> ret
    create_config_handle          -       -> ptr
    set_config_opt                kiO     -> ret
    load_with_config              k       -> id ret
    destroy_config_handle         k       -> ret
    create_exec_config_handle     -       -> ptr
    set_exec_config_opt           kkI     -> ret
    destroy_exec_config_handle    k       -> ret
    bundle_load_from_file         s       -> id ret
    bundle_load_from_mem          kk      -> id ret
    bundle_get_model_num          I       -> int ret
    bundle_get_model_id           Ik      -> id ret
    bundle_unload                 I       -> ret
    init_dump                     -       -> ret
    set_dump                      |s      -> ret
    finalize_dump                 -       -> ret
"""

_UTIL = """
    bytes_to_ptr             S    -> ptr
    ptr_to_bytes             kk   -> bytes
    numpy_to_ptr             O    -> ptr
    ptr_to_numpy             kTi  -> array
    numpy_contiguous_to_ptr  O    -> ptr array
"""

CALLS: Mapping[str, Call] = {
    **_calls("", _SYSTEM),
    **_calls("rt.", _RT),
    **_calls("mdl.", _MDL),
    **_calls("util.", _UTIL),
}
