"""How much memory one run of a torch program takes at its peak, by the allocator's own records."""

from __future__ import annotations

from collections.abc import Callable

from torch.autograd import _disable_profiler_legacy, _enable_profiler_legacy, profiler_legacy

__all__ = ["peak_bytes"]


def peak_bytes(run: Callable[[], object]) -> int:
    """Run, and return the most bytes that the calling thread had allocated at once.

    Exact, and untouched by what other threads allocate meanwhile: torch records every allocation
    on the CPU with the thread that made it. What the operators' libraries allocate past torch's
    own allocator is not in it. Results that the caller takes over are.

    The older of torch's two profilers: the newer writes two lines to stderr per use.
    """
    _enable_profiler_legacy(profiler_legacy.profile(profile_memory=True).config())
    try:
        run()
    finally:
        records = _disable_profiler_legacy()
    held = peak = 0
    for record in (record for thread in records for record in thread):
        if record.kind() == "memory_alloc":
            held += record.cpu_memory_usage()  # negative where memory is freed
            peak = max(peak, held)
    return peak
