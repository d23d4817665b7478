"""Words and files of generated Markdown pages. No torch."""

from __future__ import annotations

import re
from pathlib import Path

from tflabench.problem import InputError
from tflabench.rows.journal import write_whole


def write_page(out: Path, text: str) -> Path:
    """Write a page, and return its path; its folder is made.

    Raises:
        InputError: it cannot be written.
    """
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        if out.is_symlink() or (out.exists() and not out.is_file()):  # /dev/stdout, a pipe: nothing to put in its place
            out.write_text(text, encoding="utf-8")
        else:
            write_whole(out, text)
    except OSError as error:
        raise InputError(f"{out} cannot be written ({error.strerror}): give another file with --out") from None
    return out


def plain(text: str) -> str:
    """Return words that Markdown shows as they are, in one line."""
    return " ".join(re.sub(r"([\\`*|<\[\]]|(?<!\w)_|_(?!\w))", r"\\\1", text).split())
