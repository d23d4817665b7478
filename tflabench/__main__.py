"""Entry point of the `tflabench` command and of `python -m tflabench`."""

import logging
import os
import sys
from pathlib import Path


def leave_repository_root() -> None:
    """Take the repository root off sys.path.

    `python -m tflabench` puts the working directory first; in a checkout that makes the folder `kernels/` importable
    as a namespace package, where transformers (which fla needs) looks for the PyPI distribution of that name.
    """
    root = Path(__file__).resolve().parent.parent
    if not (root / "pyproject.toml").exists():
        return  # installed as a wheel: site-packages stays
    import tflabench  # noqa: F401  bound before its parent folder goes

    sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != root]


def main() -> None:
    leave_repository_root()
    from tflabench.cli.main import app

    if level := os.environ.get("TFLABENCH_LOG"):
        logging.basicConfig(level=level.upper(), format="%(relativeCreated)7.0f ms  %(name)s  %(message)s")
    app()


if __name__ == "__main__":
    main()
