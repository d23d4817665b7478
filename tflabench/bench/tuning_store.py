"""Choices of autotuners that were made before: in the user's cache folder, or in rows of a results folder."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from platformdirs import user_cache_path

from tflabench.rows.schema import Row
from tflabench.selection.points import Point

Choices = dict[str, Any]  # the column `tuned` of a row


def default_folder() -> Path:
    """Return where choices lie: TFLABENCH_CACHE_DIR, or the user's cache folder."""
    return Path(os.environ.get("TFLABENCH_CACHE_DIR") or user_cache_path("tflabench")) / "tuning"


class TuningStore:
    """Choices by GPU kind, versions, shape and pass: a file each.

    Args:
        versions: everything but the point that a choice depends on: the kind of GPU and packages.
        rows: choices in these come before those in the folder.
    """

    def __init__(self, folder: Path, versions: Mapping[str, str], rows: Iterable[Row] = ()) -> None:
        self._folder = folder
        self._versions = dict(versions)
        self._rows = {row.point: row.tuned for row in rows if row.tuned}

    def look_up(self, point: Point, budget_s: float | None) -> Choices | None:
        """Return what was chosen for a point, or None where less was tried than a budget of seconds would try."""
        if point.id in self._rows:
            return self._rows[point.id]
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            kept = json.loads(self._file(point).read_text())
            complete = kept["tuned"]["tried"] == kept["tuned"]["configurations"]
            if complete or (budget_s is not None and kept["budget_s"] is not None and kept["budget_s"] >= budget_s):
                return kept["tuned"]
        return None

    def keep(self, point: Point, tuned: Choices, budget_s: float | None) -> None:
        """Write down what was chosen; a folder that cannot be written keeps nothing."""
        if self.look_up(point, budget_s) is not None:
            return
        kept = {"point": point.id, "versions": self._versions, "budget_s": budget_s, "tuned": tuned}
        text = json.dumps(kept, indent=1)
        with contextlib.suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True)
            part = self._file(point).with_suffix(f".{os.getpid()}.part")
            part.write_text(text)
            os.replace(part, self._file(point))

    def _file(self, point: Point) -> Path:
        key = json.dumps([point.id, sorted(self._versions.items())])
        return self._folder / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"
