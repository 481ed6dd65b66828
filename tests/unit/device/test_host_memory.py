"""The machine's memory."""

from ge_backend.device.host_memory import host_memory, read_memory


def test_reads_meminfo():
    """Free memory is what the kernel calls available; figures are KiB."""
    memory = read_memory(
        "MemTotal: 2000 kB\nMemFree: 1 kB\nMemAvailable:   1500 kB\nHugePages: 0\n"
    )
    assert (memory.free_bytes, memory.total_bytes) == (1500 * 1024, 2000 * 1024)


def test_the_machine_has_memory():
    """Some of it is available."""
    memory = host_memory()
    assert 0 < memory.free_bytes <= memory.total_bytes
