"""One point in detail: its time by GPU kernel, and what the chip's counters say it moved and computed.

`calls` runs inside the worker process, `point` outside it; `counters` reads the output of Nsight Compute.
"""
