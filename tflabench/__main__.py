"""Entry point of the `tflabench` command and of `python -m tflabench`."""

import io
import os
import signal
import sys

INTERRUPTED = 130


def leave_repository_root() -> None:
    """Take the repository root off sys.path.

    `python -m tflabench` puts the working directory first; in a checkout that makes the folder `kernels/` importable
    as a namespace package, where transformers (which fla needs) looks for the PyPI distribution of that name.
    """
    from pathlib import Path

    root = Path(__file__).resolve().parent.parent
    if not (root / "pyproject.toml").exists():
        return  # installed as a wheel: site-packages stays
    import tflabench  # noqa: F401  bound before its parent folder goes

    sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != root]


def main() -> None:
    """Run the command line; docs/cli.md has its exit codes."""
    _take_any_text()
    interrupts = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # not where a shell has them ignored
    if interrupts:
        signal.signal(signal.SIGINT, _leave)  # imports come first: an interrupt would end in a traceback of theirs
    leave_repository_root()
    from tflabench.cli.main import app

    if level := os.environ.get("TFLABENCH_LOG"):
        import logging

        if level.upper() not in (levels := logging.getLevelNamesMapping()):
            print(f"tflabench: TFLABENCH_LOG is {level!r}: it must be one of {', '.join(levels)}", file=sys.stderr)
            sys.exit(2)
        logging.basicConfig(level=level.upper(), format="%(relativeCreated)7.0f ms  %(name)s  %(message)s")
    if interrupts:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        app(prog_name="tflabench")
    finally:
        if interrupts:
            signal.signal(signal.SIGINT, _leave)
        _close_stdout()


def _take_any_text() -> None:
    """Let stdout take every character, as a question mark where it has none, and nowhere where it is closed."""
    if sys.stdout is None:  # type: ignore[comparison-overlap]
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  until the process ends
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def _leave(*_: object) -> None:
    """End at once and without a word."""
    os._exit(INTERRUPTED)


def _close_stdout() -> None:
    """Write what is still to be written; where stdout does not take it exit with 1 and a line, or with CLOSED_PIPE."""
    from tflabench.cli.common.app import CLOSED_PIPE
    from tflabench.cli.common.console import drop_stdout

    try:
        sys.stdout.flush()
    except BrokenPipeError:
        drop_stdout()
        sys.exit(CLOSED_PIPE)
    except OSError as error:
        drop_stdout()
        print(f"tflabench: cannot write: {error.strerror}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
