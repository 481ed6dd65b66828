"""Opening a GPU, and what CUDA's errors mean."""

import warnings

import pytest

torch = pytest.importorskip("torch")

from fakes.torch_vendor import ADVICE, NOT_PERMITTED  # noqa: E402
from ge_backend.engines.torch.cuda import open_cuda  # noqa: E402
from ge_backend.errors import DeviceUnavailable, Unsupported  # noqa: E402

# In CUDA's own words, which torch and ONNX Runtime each put behind something of their own.
CONTAINED = "Invalid access of peer GPU memory over nvlink or a hardware error"
OUTSIDE = (
    "an async error has occured in external entity outside of CUDA"  # codespell:ignore occured
)


@pytest.fixture(autouse=True)
def tf32():
    """Let TF32 be allowed before a test, and as it was afterwards."""
    modules = (torch.backends.cuda.matmul, torch.backends.cudnn)
    former = [module.allow_tf32 for module in modules]
    for module in modules:
        module.allow_tf32 = True
    yield
    for module, allowed in zip(modules, former, strict=True):
        module.allow_tf32 = allowed


@pytest.fixture
def gpus(monkeypatch):
    """Return a function that lets torch see so many GPUs, or a build without CUDA."""

    def see(count, *, build="13.0", says=""):
        def is_available():
            if says:
                warnings.warn(says, stacklevel=1)
            return count > 0

        monkeypatch.setattr(torch.version, "cuda", build)
        monkeypatch.setattr(torch.cuda, "is_available", is_available)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)

    return see


def test_a_build_without_cuda(gpus):
    """The wheel for CPUs says so."""
    gpus(0, build=None)
    with pytest.raises(DeviceUnavailable, match=r"'cuda:0': torch .* is built without CUDA"):
        open_cuda(0)


def test_no_gpu(gpus):
    """Torch's own reason is part of the error, as one line."""
    gpus(0, says="CUDA initialization: Found no NVIDIA driver.\nPlease check")
    with pytest.raises(DeviceUnavailable, match=r"no GPU \(CUDA initialization: Found no NV") as e:
        open_cuda(0)
    assert "\n" not in str(e.value)


def test_an_index_out_of_range(gpus, monkeypatch):
    """The error names how many there are and what hides the others."""
    gpus(2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5")
    with pytest.raises(DeviceUnavailable, match=r"'cuda:2': torch sees 2 GPUs.* is 4,5\)"):
        open_cuda(2)


def test_float32_stays_float32(gpus):
    """TF32 is off in a process that has opened a GPU."""
    gpus(1)
    assert open_cuda(0).device == "cuda:0"
    assert not torch.backends.cuda.matmul.allow_tf32
    assert not torch.backends.cudnn.allow_tf32


@pytest.mark.parametrize(
    "name", ["_cuda_endAllocateToPool", "_cuda_endAllocateCurrentStreamToPool"]
)
def test_torch_2_7_has_another_name_for_the_end_of_a_capture(gpus, monkeypatch, name):
    """From 2.8 on it is the shorter one; the arguments are the same."""
    monkeypatch.delattr(torch._C, "_cuda_endAllocateToPool", raising=False)
    monkeypatch.setattr(torch._C, name, "ends it", raising=False)
    gpus(1)
    assert open_cuda(0).end_pool == "ends it"


def test_a_torch_that_has_none_of_the_names(gpus, monkeypatch):
    """The error has them, and the version."""
    monkeypatch.delattr(torch._C, "_cuda_endAllocateToPool", raising=False)
    gpus(1)
    with pytest.raises(DeviceUnavailable, match=r"torch 2.* has none of _cuda_endAllocateToPool, "):
        open_cuda(0)


def test_torchair_is_not_for_gpus(gpus):
    """The error says what is."""
    gpus(1)
    with pytest.raises(Unsupported, match="say graphs or eager"):
        open_cuda(0).compile(torch.nn.ReLU())


@pytest.mark.parametrize(
    ("text", "memory", "fault"),
    [
        ("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has ...", True, False),
        ("CUDA error: out of memory", True, False),
        ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate", True, False),
        ("CUDA error: an illegal memory access was encountered\nCUDA kernel errors", False, True),
        ("CUDA error: device-side assert triggered", False, True),
        ("CUDA failure 719: unspecified launch failure ; GPU=0 ; hostname=x", False, True),
        (f"CUDA error: {CONTAINED}\nCUDA kernel errors", False, True),
        (f"CUDA failure 226: {CONTAINED} ; GPU=0 ; hostname=x", False, True),
        ("CUDA error: tensor memory not completely freed", False, True),
        ("CUDA failure 721: tensor memory not completely freed ; GPU=0", False, True),
        ("CUDA error: MPS client has been terminated by the server", False, True),
        ("CUDA failure 810: MPS client has been terminated by the server ; GPU=0", False, True),
        (f"CUDA error: {OUTSIDE}", False, True),
        (f"CUDA failure 911: {OUTSIDE} ; GPU=0 ; hostname=x", False, True),
        ("CUDA error: peer access is not supported between these two devices", False, False),
        ("CUDA error: operation not permitted when stream is capturing", False, False),
        (NOT_PERMITTED, False, False),
        (f"CUDA error: invalid configuration argument{ADVICE}", False, False),
        (f"CUDA error: out of memory{ADVICE}", True, False),
        (f"CUDA error: device-side assert triggered{ADVICE}", False, True),
        ("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED", True, False),
        (
            "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
            True,
            False,
        ),
        ("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasSgemm`", False, False),
        ("The size of tensor a (3) must match the size of tensor b (4)", False, False),
    ],
)
def test_what_errors_mean(gpus, text, memory, fault):
    """Lack of memory passes, a fault does not, all else is about the run."""
    gpus(1)
    vendor = open_cuda(0)
    assert vendor.is_out_of_memory(RuntimeError(text)) is memory
    assert vendor.is_fault(RuntimeError(text)) is fault
