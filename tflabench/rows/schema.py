"""The row: every column of a measured point, with its type and its unit."""

from __future__ import annotations

from dataclasses import fields
from math import inf
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from tflabench.problem import DRAWN_GATES, Pass, Problem

SCHEMA_VERSION = 4
MOST = 2**63  # integers of a table are smaller
LONGEST_MS = 1e12  # of a time: a call takes no thirty years
LEAD_LIMIT_S = 5e-3  # longest time that the GPU is kept busy so that the host can enqueue a sample ahead of it
Status = Literal["ok", "unsupported", "oom", "compile_error", "crashed", "timeout", "wrong", "error"]


class Row(BaseModel):
    """One measured point.

    Times of calls are in milliseconds, other times in seconds, memory in bytes, rates in 1e12 FLOP/s and 1e9 B/s.

    Attributes:
        run_id: of the sweep that measured it; environment.json describes that.
        point: identity of what was asked for (see `selection.points.point_id`).
        comparison_id: of the occasion on which it was measured with others in alternating rounds. Ratios count between
            rows of one closed comparison only.
        closed: whether its comparison ended as intended; a row is provisional until then.
        rounds: turns that it had.
        packages: versions of the distributions that decide its time; None in rows of before these were recorded.
        plugin_hash: of the sources of the plugin that it is from (see `implementations.plugins`); None for what is
            bundled.
        kernel_version: of the family of this project's kernels that ran; 0 where they have launched something else
            since, None for other implementations.
        chunk_size: the one used, also where the implementation chose it.
        status: "wrong" for results that are too far from float64 or change from call to call; the row has times. It is
            "wrong" too, without a time, for a kernel that changes an input, and for a time that no kernel could have.
        host_ms: what the host needs to enqueue a call, no part of the other times. The longer of it and `ms_median` is
            what a program that enqueues one call after the other takes.
        ms_graph, joules, mhz_graph: time and energy of a call in a CUDA graph of calls that run back to back for half a
            second, on inputs that exceed the L2, and the SM clock meanwhile. None where it was not asked for, or where
            `details["untimed"]` says why.
        ms_eager: time of a call in a loop of calls, host included.
        ms_alone: time of a call for one row of the batch, times the rows.
        ms_deterministic: time of the call with `deterministic_layout=True`, of this project's operations.
        batch_invariant: "bits" where the first row is the same to the bit in a batch as alone, else by how much output
            and gradients differ, root mean square over root mean square ("within 2e-04"), or "no" from 1/64 on. Then,
            of this project's operations, the same of that row in two pieces, of its halves as packed documents beside
            each alone, and of a decode step at its end: "bits, pieces within 2e-04, documents bits, step within 3e-03".
            The first word lacks where the batch is one row.
        samples, warmup: calls timed, and calls before them, over all rounds.
        samples_ms: the time of each call, compressed (see `rows.spread.unpacked`); None in rows of before it was kept.
        protocol_version: of what the columns mean, whatever the protocol; 1 in rows of before it was counted. Since 2
            gates are drawn by `gates`, the clock alone says `throttled`, `noisy` is a standard error, and samples stay.
        compile_s: CPU seconds of compiling, and what the first call took beyond tuning.
        tune_s: seconds of timing configurations of autotuners.
        check_s: seconds of the comparison with float64.
        measure_s: seconds of its turns.
        tuned: what autotuners chose: "choices" by kernel, "tried" of "configurations". None without autotuners.
        gpu_kernels: names of the kernels that a call launched, as the profiler saw them. None on a CPU.
        heads_qk: heads of q and k, where these are fewer than `heads`, which are of v.
        ranks: devices that the sequence lay on, where it was not one. Times are of the slowest of them, memory and what
            theory says are of one, and `details` has `link`, `link_gbps`, `collective_ms`, `collective_bytes`, and
            `collective_model_ms`: the bytes over the rate of the link.
        gates: strength of the forget gates as they were drawn; of no meaning to operations without. Rows of before this
            was recorded have what was drawn then.
        extra_bytes: the peak minus what was there before the call: inputs, and the output gradient.
        ceilings: the matrix rate and bandwidth behind the bounds and percentages: provenance and source.
        percent_of_bound: the bound of the problem over the median, whatever the implementation does: each input read
            once and each output written once a pass, each product of the chunkwise form made once. None where that has
            no formula.
        percent_of_own_roofline: what the FLOPs and bytes of this implementation take at least, over the median.
            Products that our kernels make twice count twice, those of others once: no column to compare owners by.
        rel_error: the largest deviation from float64 over output and gradients, root mean square over root mean
            square, within the first `verified_steps` of the sequence.
        noisy: whether the standard error of the median is above 5% (see `bench.timing`).
        locked_mhz: SM clock to which the user said that the GPU was locked; `throttled` is then below that.
        commit, source_hash: of the sources that measured it; `source_hash` is of what decides a number.
        node: name of the machine that measured it.
        mixed_versions: of rows from a cluster, in what the node's versions differed from those of the process that
            drove the sweep; None for all others.
        gpu_uuid, driver: of the GPU; None on a CPU.
        details: what else the implementation and the correctness gate had to say.
    """

    model_config = ConfigDict(populate_by_name=True, extra="forbid")

    schema_version: Literal[4] = SCHEMA_VERSION
    run_id: str
    point: str
    comparison_id: str | None = None
    closed: bool = False
    rounds: int = 0
    implementation: str = Field(min_length=1)
    title: str
    family: str
    gate: str | None = None
    formulation: str
    package: str
    package_version: str | None = None
    packages: dict[str, str] | None = None
    plugin_hash: str | None = None
    kernel_version: int | None = None
    pass_: Pass = Field(alias="pass")
    batch: int = Field(ge=1, lt=MOST)
    heads: int = Field(ge=1, lt=MOST)
    seq_len: int = Field(ge=1, lt=MOST)
    heads_qk: int | None = Field(default=None, ge=1, lt=MOST)
    ranks: int | None = Field(default=None, ge=1, lt=MOST)
    d_qk: int = Field(ge=1, lt=MOST)
    d_hv: int = Field(ge=1, lt=MOST)
    chunk_size: int | None = Field(default=None, ge=1, lt=MOST)
    dtype: str
    inputs: str
    gates: str | None = Field(default_factory=lambda columns: DRAWN_GATES.get(columns.get("inputs", "")))
    seed: int
    device: str
    status: Status
    reason: str | None = None
    ms_median: float | None = None
    ms_min: float | None = None
    ms_p20: float | None = None
    ms_p80: float | None = None
    host_ms: float | None = None
    ms_graph: float | None = None
    ms_eager: float | None = None
    ms_alone: float | None = None
    ms_deterministic: float | None = None
    batch_invariant: str | None = None
    joules: float | None = None
    mhz_graph: float | None = None
    samples: int | None = None
    samples_ms: str | None = None
    warmup: int | None = None
    protocol: str
    protocol_version: int = 1
    timer: str | None = None
    compile_s: float | None = None
    tune_s: float | None = None
    check_s: float | None = None
    measure_s: float | None = None
    tuned: dict[str, Any] | None = None
    gpu_kernels: list[str] | None = None
    peak_bytes: int | None = None
    extra_bytes: int | None = None
    model_flops: float | None = None
    model_bytes: float | None = None
    model_ms_lower: float | None = None
    model_ms_upper: float | None = None
    ceilings: str | None = None
    tflops: float | None = None
    gbps: float | None = None
    percent_of_bound: float | None = None
    percent_of_own_roofline: float | None = None
    rel_error: float | None = None
    verified_steps: int | None = None
    sm_clock_mhz: float | None = None
    locked_mhz: float | None = None
    throttled: bool | None = None
    noisy: bool | None = None
    commit: str | None = None
    source_hash: str | None = None
    node: str = Field(min_length=1)
    mixed_versions: str | None = None
    gpu_uuid: str | None = None
    driver: str | None = None
    started_at: str
    details: dict[str, Any] = Field(default_factory=dict[str, Any])

    @field_validator(
        "ms_median", "ms_min", "ms_p20", "ms_p80", "host_ms", "ms_graph", "ms_eager", "ms_alone", "ms_deterministic"
    )
    @classmethod
    def _is_a_time(cls, value: float | None) -> float | None:
        if value is not None and (value <= 0 or LONGEST_MS < value < inf):  # infinity is no number anywhere
            raise ValueError(f"a time is more than 0 and at most {LONGEST_MS:g} ms")
        return value

    def columns(self) -> dict[str, Any]:
        """Return the row under its column names: `pass`, not `pass_`."""
        return self.model_dump(by_alias=True)

    @property
    def problem(self) -> Problem:
        """Return the size that was measured, with the chunk size that was used."""
        return Problem(**{field.name: getattr(self, field.name) for field in fields(Problem)})

    @property
    def tuned_fully(self) -> bool:
        """Return whether every configuration of its autotuners was tried; otherwise the row is no peer at its best."""
        return self.tuned is None or self.tuned["tried"] == self.tuned["configurations"]
