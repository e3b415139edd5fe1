"""The most memory that tensors took on a rank while something ran."""

from collections.abc import Callable


def peak_bytes(device: str, run: Callable[[], None]) -> int:
    """Bytes beyond what was there before. Raises what ``run`` raises.

    On a CPU the allocations that torch's profiler sees are added up; resident memory would count libraries, too.
    """
    import torch

    if device.startswith("cuda"):
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run()
        return torch.cuda.max_memory_allocated() - before
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        run()
    results = profiler.profiler.kineto_results if profiler.profiler is not None else None
    events = [event for event in results.events() if event.name() == "[memory]"] if results is not None else []
    taken = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        taken += event.nbytes()
        most = max(most, taken)
    return most
