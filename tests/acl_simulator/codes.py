"""ACL's numbers: error codes, data types, formats, copy kinds. The module `acl` has no constants."""

from enum import IntEnum

import numpy as np

__all__ = ["DATA_TYPES", "Code", "ConfigAttribute", "CopyKind", "Format", "LoadType", "Policy"]


class Code(IntEnum):
    """Error codes; 1xxxxx the caller, 2xxxxx resources, 3xxxxx business, 5xxxxx internal."""

    SUCCESS = 0
    INVALID_PARAM = 100000
    UNINITIALISED = 100001
    REPEAT_INITIALISE = 100002
    INVALID_FILE = 100003
    INVALID_MODEL_ID = 100011
    REPEAT_FINALISE = 100037
    RT_PARAM_INVALID = 107000
    RT_INVALID_DEVICE = 107001
    RT_CONTEXT_NULL = 107002
    RT_STREAM_CONTEXT = 107003
    RT_MODEL_CONTEXT = 107004
    RT_INVALID_HANDLE = 107017
    RT_INVALID_MALLOC_TYPE = 107018
    GE_PARAM_INVALID = 145000
    GE_MODEL_PATH = 145002
    GE_MODEL_ID = 145003
    GE_MODEL_DATA_SIZE = 145006
    GE_DYNAMIC_INPUT_ADDRESS = 145011
    GE_DYNAMIC_INPUT_LENGTH = 145012
    GE_NOT_A_GEAR = 145013
    NOT_SUPPORTED = 200001
    RT_FEATURE_UNSUPPORTED = 207000
    RT_MEMORY_ALLOCATION = 207001
    RT_NO_STREAM = 207005
    RT_DRIVER_TIMEOUT = 207020
    GE_MEMORY_ALLOCATION = 245000
    TASK_UNSUPPORTED = 507009
    STORAGE_OVER_LIMIT = 300000
    GE_FAILURE = 500002
    AICORE_TIMEOUT = 507014
    AICORE_EXCEPTION = 507015
    PROGRAMS_USED_UP = 507032
    STREAM_SYNC_TIMEOUT = 507046
    GE_INTERNAL = 545000
    GE_LOAD = 545001


class CopyKind(IntEnum):
    """`kind` of a copy: where from, where to."""

    HOST_TO_HOST = 0
    HOST_TO_DEVICE = 1
    DEVICE_TO_HOST = 2
    DEVICE_TO_DEVICE = 3
    DEFAULT = 4


class Format(IntEnum):
    """Layouts of a tensor that models here use."""

    NCHW = 0
    ND = 2


class Policy(IntEnum):
    """How `rt.malloc` takes its pages; the upper bits are flags."""

    HUGE_FIRST = 0
    HUGE_ONLY = 1
    NORMAL_ONLY = 2
    HUGE_FIRST_P2P = 3
    HUGE_ONLY_P2P = 4
    NORMAL_ONLY_P2P = 5
    HUGE1G_ONLY = 6
    HUGE1G_ONLY_P2P = 7


class LoadType(IntEnum):
    """`LOAD_TYPE` of a load configuration; loading with queues is not simulated."""

    FROM_FILE = 1
    FROM_FILE_WITH_MEM = 2
    FROM_MEM = 3
    FROM_MEM_WITH_MEM = 4
    FROM_FILE_WITH_Q = 5
    FROM_MEM_WITH_Q = 6


class ConfigAttribute(IntEnum):
    """Attributes of a load configuration."""

    PRIORITY = 0
    LOAD_TYPE = 1
    PATH = 2
    MEM_ADDRESS = 3
    MEM_SIZE = 4
    WEIGHT_ADDRESS = 5
    WEIGHT_SIZE = 6
    WORKSPACE_ADDRESS = 7
    WORKSPACE_SIZE = 8
    WORKSPACE_MEM_OPTIMIZE = 13
    WEIGHT_PATH = 14


# ACL's number -> (Triton's name, numpy's type; bit patterns where numpy has no such type).
DATA_TYPES: dict[int, tuple[str, np.dtype]] = {
    0: ("FP32", np.dtype(np.float32)),
    1: ("FP16", np.dtype(np.float16)),
    2: ("INT8", np.dtype(np.int8)),
    3: ("INT32", np.dtype(np.int32)),
    4: ("UINT8", np.dtype(np.uint8)),
    6: ("INT16", np.dtype(np.int16)),
    7: ("UINT16", np.dtype(np.uint16)),
    8: ("UINT32", np.dtype(np.uint32)),
    9: ("INT64", np.dtype(np.int64)),
    10: ("UINT64", np.dtype(np.uint64)),
    11: ("FP64", np.dtype(np.float64)),
    12: ("BOOL", np.dtype(np.bool_)),
    16: ("COMPLEX64", np.dtype(np.complex64)),
    17: ("COMPLEX128", np.dtype(np.complex128)),
    27: ("BF16", np.dtype(np.uint16)),
}
