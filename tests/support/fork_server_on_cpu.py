"""A fork server for tests without a GPU: libraries hear of an H100 while they are imported, workers use the CPU."""

from __future__ import annotations

from tflabench.bench import fork_server, import_answers, worker

PROPERTIES = {"name": "NVIDIA H100", "major": 9, "minor": 0, "multi_processor_count": 132, "warp_size": 32,
              "total_memory": 85_017_755_648, "L2_cache_size": 52_428_800}  # fmt: skip
TRITON_PROPERTIES = {"max_shared_mem": 232_448, "multiprocessor_count": 132, "warpSize": 32}


def serve_on_cpu(*descriptors: int, device: str, plugins: list[str]) -> None:
    import torch
    from triton.runtime.driver import driver

    assert driver._active is None, "nothing that libraries were answered is left"
    assert not torch.cuda.is_available()
    worker.serve_forked(*descriptors, device="cpu", plugins=plugins)


if __name__ == "__main__":
    import_answers.ask_gpu = lambda: import_answers.GpuAnswers("NVIDIA H100", (9, 0), PROPERTIES, TRITON_PROPERTIES)
    fork_server.serve_forked = serve_on_cpu
    fork_server.main()
