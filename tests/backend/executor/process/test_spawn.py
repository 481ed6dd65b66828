"""What a process of an address is started with."""

from pathlib import Path

import pytest

import ge_backend
from builders.null_models import address_in
from ge_backend.executor.process.address import ExecutorAddress
from ge_backend.executor.process.spawn import SEARCH_PATHS, environment_of, kept_paths

SERVER = {
    "LD_LIBRARY_PATH": "/opt/tritonserver/lib:/usr/local/Ascend/driver/lib64::/cann/8.5/lib64",
    "PYTHONPATH": "/cann/8.5/python/site-packages:/home/me/code",
    "ASCEND_HOME_PATH": "/cann/8.5",
}


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "run"


def test_the_environment_is_cleaned_of_the_servers_own(folder):
    """The server's libraries and modules stay with the server; the rest is inherited."""
    inherited = {
        "PATH": "/bin",
        "LD_LIBRARY_PATH": "/opt/tritonserver/lib",
        "PYTHONPATH": "/opt/tritonserver/python",
        "PYTHONHOME": "/opt/tritonserver",
        "HTTPS_PROXY": "kept",
    }
    environment = environment_of(address_in(folder), inherited)
    package = Path(ge_backend.__file__).resolve().parent.parent
    assert environment == {
        "PATH": "/bin",
        "HTTPS_PROXY": "kept",
        "PYTHONPATH": str(package),
        "PYTHONSAFEPATH": "1",
        "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
        "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
    }


@pytest.mark.parametrize(
    ("given", "passed"),
    [
        ("glibc.malloc.hugetlb=0", "glibc.malloc.hugetlb=0"),
        ("glibc.malloc.tcache_count=9", "glibc.malloc.tcache_count=9:glibc.malloc.hugetlb=1"),
    ],
)
def test_huge_pages_are_asked_for_unless_the_server_says_otherwise(folder, given, passed):
    """Other settings of the C library's stay."""
    environment = environment_of(address_in(folder), {"GLIBC_TUNABLES": given})
    assert environment["GLIBC_TUNABLES"] == passed


def test_the_library_path_can_be_set(folder):
    """What the machine's configuration says becomes the executor's library path."""
    address = ExecutorAddress(
        device="null", directory=folder, owner_pid=1, python="", library_path="/opt/cann/lib"
    )
    assert environment_of(address, {})["LD_LIBRARY_PATH"] == "/opt/cann/lib"


def test_an_npus_executor_keeps_what_finds_cann(folder):
    """CANN's parts of the search paths come behind our own."""
    address = ExecutorAddress(
        device="npu:0", directory=folder, owner_pid=1, python="", library_path="/more"
    )
    inherited = {
        "LD_LIBRARY_PATH": "/opt/tritonserver/lib:/usr/local/Ascend/cann/lib64",
        "PYTHONPATH": "/opt/tritonserver/python:/usr/local/Ascend/cann/python/site-packages",
    }
    environment = environment_of(address, inherited)
    package = Path(ge_backend.__file__).resolve().parent.parent
    assert environment["LD_LIBRARY_PATH"] == "/more:/usr/local/Ascend/cann/lib64"
    assert environment["PYTHONPATH"] == f"{package}:/usr/local/Ascend/cann/python/site-packages"


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
