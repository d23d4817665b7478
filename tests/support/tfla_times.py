"""Times of the bars of the TFLA kernels: forward and forward+backward at the paper's shapes, L2 flushed, medians in ms.

`python tests/support/tfla_times.py [ROWS.jsonl]`
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path

import torch

from tflabench.kernels.common.contract import Arguments, KernelOptions
from tflabench.kernels.scalar.tfla import chunkwise
from tflabench.kernels.types import MLSTM_EXP, MLSTM_SIG

SHAPES = (
    ((16, 16, 4096, 128, 256), (64, 128, 256, 512)),
    ((1, 16, 65536, 128, 256), (128, 256, 512)),
    ((8, 8, 8192, 256, 512), (128, 256, 512, 4096)),
    ((1, 8, 65536, 256, 512), (256, 512)),
    ((128, 16, 512, 128, 256), (128, 256)),
)


def measure(shape: tuple[int, int, int, int, int], L: int, gate_name: str) -> dict[str, object]:
    B, H, T, d_qk, d_hv = shape
    gate = {"exp": MLSTM_EXP, "sig": MLSTM_SIG}[gate_name]
    torch.manual_seed(0)
    q, k, v, dh = (torch.randn(B, H, T, d, device="cuda", dtype=torch.bfloat16) for d in (d_qk, d_qk, d_hv, d_hv))
    f, i = torch.randn(B, H, T, device="cuda") + 3, torch.randn(B, H, T, device="cuda")
    arguments, options = Arguments(q, k, v, f, i), KernelOptions(gate, d_qk**-0.5, L)
    flush = torch.empty(64 * 2**20, dtype=torch.int32, device="cuda")

    def fw():
        return chunkwise.forward(arguments, options)

    def fwbw():
        _, _, saved = fw()
        chunkwise.backward(dh, None, arguments, saved, options)

    row: dict[str, object] = {"shape": shape, "L": L, "gate": gate_name}
    for name, run in (("fw", fw), ("fwbw", fwbw)):
        for _ in range(5):
            run()
        times = []
        for _ in range(30):
            flush.zero_()
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            run()
            end.record()
            end.synchronize()
            times.append(start.elapsed_time(end))
        row[name] = round(statistics.median(times), 3)
    del flush
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    _, _, saved = fw()
    chunkwise.backward(dh, None, arguments, saved, options)
    row["peak_gib"] = round(torch.cuda.max_memory_allocated() / 2**30, 3)
    return row


def main() -> None:
    rows = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    for shape, Ls in SHAPES:
        for L in Ls:
            for gate in ("sig", "exp"):
                row = measure(shape, L, gate)
                print(*row.values(), flush=True)
                if rows:
                    with rows.open("a") as file:
                        file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
