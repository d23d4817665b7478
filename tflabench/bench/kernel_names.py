"""Which GPU kernels a call launches, as the profiler sees them: a row rules out that another engine ran than named."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

LONGEST = 160  # characters of a name: templates of C++ libraries go on for pages


def launched(run: Callable[[], object], device: torch.device) -> list[str] | None:
    """Return the names of the kernels that one call launches, each once, in order; None on a CPU."""
    if device.type != "cuda":
        return None
    import torch
    from torch._C._autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        run()
        torch.cuda.synchronize(device)
    events = [event for event in seen.events() or () if event.device_type == DeviceType.CUDA]
    events.sort(key=lambda event: event.time_range.start)
    return list(dict.fromkeys(event.name[:LONGEST] for event in events if not event.name.startswith("Mem")))
