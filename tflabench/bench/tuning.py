"""Control of Triton's autotuners inside a worker: a budget of seconds, a record of what was chosen, and its replay.

Choices that were made before lie in the user's cache folder, or in rows of a results folder (`TuningStore`).

Autotuners of libraries key their choice by a few arguments only: those of fla and mamba-ssm know neither batch nor
sequence length. So a worker serves one point of these libraries, starts with no choice made, and says what was chosen.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from platformdirs import user_cache_path

if TYPE_CHECKING:
    from collections.abc import Iterator

    from triton.runtime.autotuner import Autotuner

    from tflabench.rows.schema import Row
    from tflabench.selection.points import Point

LEAST_CALLS, MOST_CALLS = 3, 20  # of one configuration
CALLS_S = 0.02  # a configuration is called until it has taken this long, within those bounds
NOT_REACHED = [float("inf")] * 3  # quantiles of a configuration that was not tried

Config = dict[str, Any]  # meta-parameters, num_warps, num_stages, ... by name
Choices = dict[str, Any]  # the column `tuned` of a row


@dataclass
class Tuned:
    """The choices of the autotuners of one point.

    Attributes:
        choices: kernel -> configuration; a kernel that is tuned for several keys has "#2", "#3", ... behind its name.
        tried, configurations: how many configurations were timed, and how many there were.
        seconds: what timing them took, without their first calls, which may compile.
    """

    choices: dict[str, Config] = field(default_factory=dict)
    tried: int = 0
    configurations: int = 0
    seconds: float = 0.0

    def columns(self) -> dict[str, Any]:
        """Return the columns of a row, without `tuned` for a point that has no autotuners."""
        columns = asdict(self)
        seconds = columns.pop("seconds")
        return {"tune_s": seconds, "tuned": columns} if self.choices else {"tune_s": seconds}


@contextmanager
def tuning(budget_s: float | None, replay: Mapping[str, Config] | None = None) -> Iterator[Tuned]:
    """Let autotuners run for `budget_s` seconds at most within the block, and record what they choose.

    Args:
        budget_s: seconds for all kernels together, first calls not counted; None for every configuration. Of each
            kernel one that runs is always timed.
        replay: choices of an earlier run, which are taken over without timing where the kernel still has them.
    """
    try:
        from triton.runtime.autotuner import Autotuner
    except ImportError:  # nothing to tune
        yield Tuned()
        return
    tuned = Tuned()
    originals = {name: getattr(Autotuner, name) for name in ("run", "prune_configs", "_bench")}
    runs = False  # whether a configuration of the kernel at hand has a time

    def run(self: Autotuner, *args: Any, **kwargs: Any) -> Any:
        before = set(self.cache)
        result = originals["run"](self, *args, **kwargs)
        for key in self.cache.keys() - before:
            tuned.choices[_free_name(self, tuned)] = dict(self.cache[key].all_kwargs())
        return result

    def prune_configs(self: Autotuner, kwargs: dict[str, Any]) -> list[Any]:
        """Asked once for each key that has no choice yet."""
        nonlocal runs
        runs = False
        configurations = originals["prune_configs"](self, kwargs)
        wanted = (replay or {}).get(_free_name(self, tuned))
        return [config for config in configurations if dict(config.all_kwargs()) == wanted] or configurations

    def bench(self: Autotuner, *args: Any, config: Any, **meta: Any) -> list[float]:
        nonlocal runs
        tuned.configurations += 1
        if budget_s is not None and runs and tuned.seconds > budget_s:
            return NOT_REACHED

        def timed(call: Callable[[], object], quantiles: Sequence[float]) -> list[float]:
            call()  # compiles, or takes what is compiled from the cache
            start = time.perf_counter()
            try:
                return time_calls(call, quantiles)
            finally:
                tuned.seconds += time.perf_counter() - start

        self.__dict__["do_bench"] = timed
        tuned.tried += 1
        quantiles = originals["_bench"](self, *args, config=config, **meta)
        runs = runs or min(quantiles) < float("inf")
        return quantiles

    with patch.multiple(Autotuner, run=run, prune_configs=prune_configs, _bench=bench):
        yield tuned


def time_calls(call: Callable[[], object], quantiles: Sequence[float]) -> list[float]:
    """Return the median time of a kernel in ms, three times, as an autotuner wants its quantiles.

    Between calls the L2 is flushed, as where rows are timed.
    """
    import torch

    torch.cuda.synchronize()
    flush = torch.empty(2 * torch.cuda.get_device_properties(0).L2_cache_size, dtype=torch.uint8, device="cuda")
    times: list[float] = []
    begin = time.perf_counter()
    while len(times) < MOST_CALLS and (len(times) < LEAST_CALLS or time.perf_counter() - begin < CALLS_S):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        flush.zero_()
        start.record()
        call()
        stop.record()
        stop.synchronize()
        times.append(start.elapsed_time(stop))
    return [median(times)] * 3


def _free_name(tuner: Autotuner, tuned: Tuned) -> str:
    """Return the name of a tuner's kernel, with "#2", "#3", ... where it has made choices for other keys before."""
    name = tuner.base_fn.__name__
    count = sum(known.partition("#")[0] == name for known in tuned.choices)
    return f"{name}#{count + 1}" if count else name


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
        self._rows = {row.point: row for row in rows if row.tuned}

    def look_up(self, point: Point, budget_s: float | None) -> Choices | None:
        """Return what was chosen for a point, or None where less was tried than a budget of seconds would try.

        A choice of rows counts with any budget; without one, if every configuration was tried.
        """
        row = self._rows.get(point.id)
        if row and (budget_s is not None or row.tuned_fully):
            return row.tuned
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
