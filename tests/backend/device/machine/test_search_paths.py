"""An executor for an NPU keeps what CANN put on the search paths, and nothing else of the server's."""

import pytest

from ge_backend.device.machine.search_paths import SEARCH_PATHS, kept_paths

SERVER = {
    "LD_LIBRARY_PATH": "/opt/tritonserver/lib:/usr/local/Ascend/driver/lib64::/cann/8.5/lib64",
    "PYTHONPATH": "/cann/8.5/python/site-packages:/home/me/code",
    "ASCEND_HOME_PATH": "/cann/8.5",
}


def test_the_paths_of_cann_are_kept_in_order():
    """CANN is known by its own variables, and the driver by the folder that its installer makes."""
    assert kept_paths("npu:1", SERVER, "LD_LIBRARY_PATH") == [
        "/usr/local/Ascend/driver/lib64",
        "/cann/8.5/lib64",
    ]
    assert kept_paths("npu:1", SERVER, "PYTHONPATH") == ["/cann/8.5/python/site-packages"]


@pytest.mark.parametrize("variable", SEARCH_PATHS)
@pytest.mark.parametrize("device", ["cpu", "cuda:0", "null"])
def test_other_devices_keep_nothing(device, variable):
    """What CANN brings is not for them."""
    assert kept_paths(device, SERVER, variable) == []


@pytest.mark.parametrize("variable", SEARCH_PATHS)
def test_a_server_without_cann_has_nothing_to_keep(variable):
    """A missing variable is as good as an empty one."""
    assert kept_paths("npu:0", {}, variable) == []
    assert kept_paths("npu:0", {"LD_LIBRARY_PATH": "/lib", "PYTHONPATH": "/p"}, variable) == []


def test_a_name_that_only_begins_alike_is_not_cann():
    """Folders are compared whole."""
    given = {"PYTHONPATH": "/cann/8.50/python:/opt/Ascendant", "ASCEND_HOME_PATH": "/cann/8.5"}
    assert kept_paths("npu:0", given, "PYTHONPATH") == []


@pytest.mark.parametrize(
    ("entry", "kept"),
    [
        ("/usr/local/nvidia/lib64", True),
        ("/usr/local/cuda-12.4/compat/lib.real", True),
        ("/usr/local/cuda/lib64", True),
        ("/usr/lib/wsl/lib", True),
        ("/site-packages/nvidia/cublas/lib", True),
        ("/opt/tritonserver/lib", False),
        ("/site-packages/pytriton/tritonserver/external_libs", False),
        ("/home/cudachen/lib", False),
    ],
)
def test_a_gpu_keeps_the_folders_of_its_driver_and_of_cuda(entry, kept):
    """Of the libraries only, and no other device keeps them."""
    environment = {"LD_LIBRARY_PATH": f"/a:{entry}", "PYTHONPATH": entry}
    assert kept_paths("cuda:0", environment, "LD_LIBRARY_PATH") == [entry] * kept
    assert kept_paths("cuda:0", environment, "PYTHONPATH") == []
    assert kept_paths("cpu", environment, "LD_LIBRARY_PATH") == []
