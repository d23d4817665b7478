"""Completions that a shell offers for the value of an option: presets and GPUs by name."""

from __future__ import annotations

from pathlib import Path


def presets(incomplete: str) -> list[str]:
    """Return the bundled presets and the TOML files that begin like this."""
    from tflabench.selection.presets import preset_names

    files = sorted(str(path) for path in Path().glob("*.toml"))
    return [name for name in (*preset_names(), *files) if name.startswith(incomplete)]


def gpus(incomplete: str) -> list[str]:
    """Return the known GPUs whose name begins like this.

    Words hang together by "-", which `hardware.find` takes for a space: a shell would split the name.
    """
    from tflabench.theory import hardware

    names = (name.replace(" ", "-") for gpu in hardware.KNOWN for name in (gpu.name, *gpu.aliases))
    return [name for name in dict.fromkeys(names) if name.startswith(incomplete)]


def gpu_lists(incomplete: str) -> list[str]:
    """Return comma-separated GPUs with the last one completed."""
    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in gpus(last)]
