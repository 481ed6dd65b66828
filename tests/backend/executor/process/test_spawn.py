"""What a process of an address is started with."""

from pathlib import Path

import pytest

import ge_backend
from builders.null_models import address_in
from ge_backend.executor.process.address import ExecutorAddress
from ge_backend.executor.process.spawn import environment_of


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
