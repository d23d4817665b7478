"""A process that has imported torch, Triton and one library, never touches CUDA, and forks workers from itself.

While it imports, torch.cuda and Triton's driver answer as the GPU would; afterwards nothing of that is left, so that a
forked worker is as if it had imported all that itself.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import recv_handle
from typing import Any

from tflabench.bench.child import die_with_parent
from tflabench.bench.worker import serve_forked

OUR_LIBRARY = "tflabench"


def main() -> None:
    """Import the library of the first argument, then fork a worker for each message, until the parent ends.

    A message is (label, arguments of `worker.serve_forked`, number of descriptors, which follow). The answer is
    (label, exit code), once the worker has ended.
    """
    library, descriptor = sys.argv[1:]
    pipe = Connection(int(descriptor))
    die_with_parent()
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # until a worker takes it
    import_library(library)
    gc.collect()
    gc.freeze()  # or the first collection of every worker copies all that was imported
    with contextlib.suppress(EOFError, ConnectionError):
        _serve(pipe)
    os._exit(0)  # to take torch apart takes a while


def import_library(library: str) -> None:
    """Import what the implementations of a library need; where one cannot be had, its worker says why."""
    if library != OUR_LIBRARY:  # whose kernels do without, and Dynamo takes seconds
        import torch._dynamo  # noqa: F401  keeps what torch.cuda is when it is imported: before anything is replaced
    from triton.compiler.compiler import make_backend
    from triton.runtime.cache import triton_key

    from tflabench.bench.import_answers import answering, ask_gpu
    from tflabench.bench.warming import key_callees_first
    from tflabench.implementations import registry

    key_callees_first()
    answers = ask_gpu()
    with answering(answers):
        if library == OUR_LIBRARY:
            from tflabench.kernels import api, step  # noqa: F401
        for impl in registry.implementations():
            if impl.imports and impl.package == library:
                with contextlib.suppress(Exception):  # whatever a foreign module raises
                    impl.imports()
        triton_key()  # a hash of all of Triton, and of its assembler below: remembered
        make_backend(answers.target).hash()


def _serve(pipe: Connection) -> None:
    labels: dict[int, int] = {}  # by process
    woken, waking = os.pipe()
    os.set_blocking(waking, False)
    signal.set_wakeup_fd(waking)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while True:
        for ready in wait([pipe, woken]):
            if ready == woken:
                os.read(woken, 1 << 12)
                continue
            label, arguments, count = pipe.recv()
            descriptors = [recv_handle(pipe) for _ in range(count)]
            labels[_fork(pipe, [woken, waking], descriptors, arguments)] = label
        while labels and (ended := os.waitpid(-1, os.WNOHANG))[0]:
            pipe.send((labels.pop(ended[0]), os.waitstatus_to_exitcode(ended[1])))


def _fork(pipe: Connection, private: list[int], descriptors: list[int], arguments: dict[str, Any]) -> int:
    """Fork a worker and return the id of its process."""
    server = os.getpid()
    if pid := os.fork():
        for descriptor in descriptors:
            os.close(descriptor)
        return pid
    code = 1
    try:
        die_with_parent()
        if os.getppid() != server:  # it was faster
            os._exit(1)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        pipe.close()
        for descriptor in private:
            os.close(descriptor)
        serve_forked(*descriptors, **arguments)
        code = 0
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
