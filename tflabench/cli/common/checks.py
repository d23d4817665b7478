"""What options have in common that take several words."""

from __future__ import annotations


def words(text: str) -> list[str]:
    """Return the parts of a comma-separated option."""
    return [word.strip() for word in text.split(",")]
