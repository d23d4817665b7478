"""The process of one GPU of this host: measures the comparisons that come through a pipe, and sends back what it says.

Started by `host.OneHost` with the descriptor of the pipe, and with CUDA_VISIBLE_DEVICES set to its GPU.
"""

from __future__ import annotations

import sys
from multiprocessing.connection import Connection

from tflabench.bench.several.task import Ended, Fault, Station, Terms
from tflabench.bench.worker import die_with_parent
from tflabench.implementations import registry
from tflabench.problem import InputError


def main() -> None:
    """Measure until the other end of the pipe closes."""
    die_with_parent()
    pipe = Connection(int(sys.argv[1]))
    terms: Terms = pipe.recv()
    node: str = pipe.recv()
    try:
        for plugin in terms.plugins:
            registry.plug_in(plugin)
        with Station(terms, node) as station:
            for event in station.prepare():
                pipe.send(event)
            while True:
                for event in station.measure(pipe.recv()):
                    pipe.send(event)
                pipe.send(Ended())
    except EOFError:
        return
    except InputError as error:
        pipe.send(Fault("error", str(error)))


if __name__ == "__main__":
    main()
