"""The row: every column of a measured point, with its type and its unit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

if TYPE_CHECKING:
    pass


SCHEMA_VERSION = 1
Status = Literal["ok", "unsupported", "oom", "compile_error", "crashed", "timeout", "wrong", "error"]


class Row(BaseModel):
    """One measured point. Times in milliseconds, memory in bytes, rates in units of 1e12 FLOP/s and 1e9 B/s.

    `point` is the identity of what was asked for (see `point_id`); `chunk_size` the one that was used, also where the
    implementation chose it. `host_ms` is what the host needs to enqueue a call, no part of the other times; the longer
    of it and `ms_median` is what a program that enqueues one call after the other takes. `compile_s` is what the first
    call took beyond a settled one: compiling, tuning, loading. `extra_bytes` is the peak minus what was there before
    the call: inputs, and the output gradient. `rel_error` is the largest deviation from float64 over the output and the
    gradients, root mean square over root mean square, within the first `verified_steps` of the sequence. `details`
    holds what else the implementation and the gate had to say.
    """

    model_config = ConfigDict(populate_by_name=True, extra="forbid")

    schema_version: Literal[1] = SCHEMA_VERSION
    run_id: str
    point: str
    implementation: str
    title: str
    family: str
    gate: str | None = None
    formulation: str
    package: str
    package_version: str | None = None
    pass_: str = Field(alias="pass")
    batch: int
    heads: int
    seq_len: int
    d_qk: int
    d_hv: int
    chunk_size: int | None = None
    dtype: str
    inputs: str
    seed: int
    device: str
    status: Status
    reason: str | None = None
    ms_median: float | None = None
    ms_min: float | None = None
    ms_p20: float | None = None
    ms_p80: float | None = None
    host_ms: float | None = None
    samples: int | None = None
    warmup: int | None = None
    protocol: str
    timer: str | None = None
    compile_s: float | None = None
    peak_bytes: int | None = None
    extra_bytes: int | None = None
    model_flops: float | None = None
    model_bytes: float | None = None
    model_ms_lower: float | None = None
    model_ms_upper: float | None = None
    ceilings: str | None = None
    tflops: float | None = None
    gbps: float | None = None
    percent_of_roofline: float | None = None
    rel_error: float | None = None
    verified_steps: int | None = None
    sm_clock_mhz: float | None = None
    throttled: bool | None = None
    noisy: bool | None = None
    started_at: str
    details: dict[str, Any] = Field(default_factory=dict)

    def columns(self) -> dict[str, Any]:
        """The row under its column names: `pass`, not `pass_`."""
        return self.model_dump(by_alias=True)
