"""Under which conditions rows were measured. No torch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from tflabench.implementations.registry import is_current

if TYPE_CHECKING:
    from tflabench.rows.load import Results
    from tflabench.rows.schema import Row

# What decides how fast a kernel runs besides itself. Packages of baselines are not among them: a row names its own.
DECISIVE = ("device", "driver", "cuda", "cudnn", "threads", "torch", "triton")


def conditions(environment: Mapping[str, Any]) -> dict[str, str]:
    """Return the device, driver and versions of one run of environment.json, by name, as far as it says them."""
    device_facts = environment.get("device_facts", {})
    values = {name: environment.get(name) for name in ("device", "driver", "python", "tflabench", "commit")}
    values |= {name: device_facts.get(name) for name in ("cuda", "cudnn", "threads")}
    values |= environment.get("packages", {}) | environment.get("variables", {})
    return {name: str(value) for name, value in values.items() if value is not None}


def conditions_of(rows: Iterable[Row], runs: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return all values that each condition had in the runs behind rows; device and protocol are those of the rows."""
    values: dict[str, set[str]] = defaultdict(set)
    for row in rows:
        described = conditions(runs.get(row.run_id, {}))
        described |= {"device": row.device, "protocol": f"{row.protocol} {row.protocol_version}"}
        for name, value in described.items():
            values[name].add(value)
    return {name: sorted(several) for name, several in values.items()}


def differences(a: Mapping[str, Sequence[str]], b: Mapping[str, Sequence[str]]) -> dict[str, tuple[str, str]]:
    """Return the conditions in which two sides differ, by name, in words; the decisive ones first."""
    names = [name for name in (*DECISIVE, "protocol") if name in a or name in b]
    names += sorted((a.keys() | b.keys()) - set(names))

    def words(side: Mapping[str, Sequence[str]], name: str) -> str:
        return " and ".join(side.get(name, ())) or "not recorded"

    return {name: (words(a, name), words(b, name)) for name in names if a.get(name) != b.get(name)}


@dataclass(frozen=True)
class Campaign:
    """Rows of one results folder that ran under the same decisive conditions."""

    folder: str
    rows: tuple[Row, ...]
    runs: Mapping[str, Any]

    @cached_property
    def is_current(self) -> bool:
        """Return whether all its rows are of today's kernels."""
        return all(is_current(row.implementation, row.kernel_version) for row in self.rows)

    @property
    def device(self) -> str:
        """Return the device that all its rows are of."""
        return self.rows[0].device

    @cached_property
    def decisive(self) -> dict[str, str]:
        """Return the conditions that decide its times."""
        values = conditions_of(self.rows, self.runs)
        return {name: " ".join(values.get(name, ["not recorded"])) for name in DECISIVE}


def campaigns(results: Iterable[Results]) -> list[Campaign]:
    """Return the rows of results folders, apart where device, driver or the versions that decide a time differ."""
    made = []
    for folder in results:
        apart: dict[tuple, list[Row]] = defaultdict(list)
        for row in folder.rows:
            run = conditions(folder.runs.get(row.run_id, {})) | {"device": row.device}
            apart[tuple(run.get(name) for name in DECISIVE)].append(row)
        for rows in apart.values():
            runs = {run: folder.runs[run] for run in dict.fromkeys(row.run_id for row in rows) if run in folder.runs}
            made.append(Campaign(str(folder.folder), tuple(rows), runs))
    return made
