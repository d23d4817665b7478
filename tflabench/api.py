"""The Python API: the commands that measure, check, read and draw. `tflabench` has all of its names.

    import tflabench

    df = tflabench.sweep("quick", impl="reference_*", seq_len=[256, 512])  # or tflabench.load("results/h100/quick")
    tflabench.plot(df, axis="seq_len").savefig("runtime.png")
    tflabench.optimal_chunk_size(gpu="H100", d_qk=256, d_hv=512)  # 512
    tflabench.verify(impl="reference_sig", seq_len=100)["error"].max()

A mistake in an argument is an `InputError`, a ValueError of one line. Heavy libraries are imported by calls only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack, cast

from tflabench.problem import InputError

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd
    from matplotlib.figure import Figure

    from tflabench.bench.profile.point import Profile
    from tflabench.problem import Pass
    from tflabench.selection.axes import Values

AxisValues = int | str | Sequence[int | str | None] | None  # a value, a range such as "512:4096:x2", or several


class Axes(TypedDict, total=False):
    """Axes of a sweep by name, as `--axis` has them; each replaces that of the preset.

    Attributes:
        seq_len, batch, heads: T, B, H; tokens: B T; embedding: H d_hv.
        heads_qk: of q and k, where heads of v share them; ranks: GPUs that one sequence lies on.
        d_qk, d_hv: head dimensions; head_dim: both.
        chunk_size: L; None, or "auto", where the implementation chooses.
        dtype: "bfloat16", "float16", "float32" or "float64".
        inputs: "normal" or "standard".
        gates: "weak", "usual", "medium", "strong" or "closing"; those of its family where it is left out.
        pass_: "fw", "fwbw", "both" or "decode".
    """

    seq_len: AxisValues
    batch: AxisValues
    heads: AxisValues
    heads_qk: AxisValues
    ranks: AxisValues
    tokens: AxisValues
    embedding: AxisValues
    d_qk: AxisValues
    d_hv: AxisValues
    head_dim: AxisValues
    chunk_size: AxisValues
    dtype: AxisValues
    inputs: AxisValues
    gates: AxisValues
    pass_: AxisValues


class CallSizes(TypedDict, total=False):
    """Sizes of one call. On a GPU they are by default those of the paper's Fig. 4 at T = 4096.

    Attributes:
        batch, heads, seq_len, d_qk, d_hv: B, H, T and head dimensions.
        chunk_size: L; None, the default, where the implementation chooses.
        dtype: "bfloat16", "float16", "float32" or "float64".
    """

    batch: int
    heads: int
    seq_len: int
    d_qk: int
    d_hv: int
    chunk_size: int | None
    dtype: str


def load(path: Path | str) -> pd.DataFrame:
    """Return the rows of a results folder, or of all results folders below it: the last one of every point.

    Columns are those of `tflabench.rows.schema.Row`: times in milliseconds, memory in bytes. Times may be divided by
    each other within one closed `comparison_id` only.

    Raises:
        InputError: no such folder, no rows in it or below, or rows of another schema version.
    """
    import os

    from tflabench.rows.load import read_rows

    if not isinstance(cast("Any", path), (str, os.PathLike)) or path == "":
        raise InputError(f"path is {path!r}: it must be a results folder, or a folder above several")
    return read_rows(path)


def optimal_chunk_size(  # noqa: PLR0913  public
    gpu: str | None = None,
    *,
    d_qk: int = 256,
    d_hv: int = 512,
    gate: Literal["exp", "sig", "gla"] = "sig",
    seq_len: int = 8192,
    batch: int = 8,
    heads: int = 8,
    pass_: Pass = "fw",
    dtype: str = "bfloat16",
    state_dtype: str = "float32",
    memory_budget: str | None = None,
) -> int:
    """Return the chunk size L, in steps, of least theoretical runtime: `recommended` of `tflabench optimal-chunk`.

    It is a power of two, by the paper's model. Measured optima are lower; `sweep` finds them.

    Args:
        gpu: as `tflabench gpus` lists them, or a .toml file; None for this machine's, or an H100 where there is none.
        d_qk, d_hv: head dimensions of queries and keys, and of values.
        gate: "exp" or "sig" of the mLSTM, or "gla" for Gated Linear Attention.
        seq_len, batch, heads: T, B, H of a call.
        pass_: "fw", or "fwbw" for forward and backward.
        dtype, state_dtype: of q, k, v and gates, and of states in memory.
        memory_budget: peak memory allowed, such as "8GiB".

    Raises:
        InputError: an unknown GPU, gate or dtype, a size below 1, or a budget that no chunk size fits.
    """
    from tflabench.bench.machine import chosen_gpu
    from tflabench.problem import Problem, dtype_bytes, one_of, parse_bytes
    from tflabench.theory.chunk_size import Tradeoff
    from tflabench.theory.cost import GATES

    if gpu is not None:
        _check_text("gpu", gpu)
    one_of("gate", gate, GATES)
    for name, size in (("d_qk", d_qk), ("d_hv", d_hv), ("seq_len", seq_len), ("batch", batch), ("heads", heads)):
        if not isinstance(cast("Any", size), Integral) or isinstance(cast("Any", size), bool):
            raise InputError(f"{name} is {size!r}: it must be a whole number")
    problem = Problem(batch, heads, seq_len, d_qk, d_hv, dtype=dtype, pass_=pass_)
    state_bytes = dtype_bytes("state_dtype", state_dtype)
    tradeoff = Tradeoff(problem, gate, chosen_gpu(gpu, dtype).ceilings, state_bytes=state_bytes)
    return tradeoff.recommend(None if memory_budget is None else parse_bytes("memory_budget", memory_budget))


def plot(
    df: pd.DataFrame,
    *,
    axis: str | None = None,
    quantity: Literal["runtime", "memory", "error"] = "runtime",
    highlight: str | Sequence[str] = (),
) -> Figure:
    """Return a matplotlib figure of rows: runtime or peak memory over an axis, over the bounds of theory.

    Of rows at several settings those of most points are drawn; its title says which. Of a point measured more than once
    the last row counts.

    Args:
        df: rows as `load` and `sweep` return them, or some of them, of one device.
        axis: "seq_len", "d_hv", "d_qk", "chunk_size", "heads", "batch" or "dtype"; None for the first that varies.
        quantity: what is drawn.
        highlight: patterns of the implementations to colour and name, at most 7; none leaves the choice to the figure.

    Raises:
        InputError: no rows, rows of several devices, missing columns, an unknown axis or quantity, or a pattern that
            matches no implementation.
    """
    from tflabench import figures
    from tflabench.figures.matplotlib_renderer import draw

    if not hasattr(df, "columns"):
        raise InputError(f"df is a {type(df).__name__}: it must be a DataFrame of rows, as tflabench.load returns it")
    return draw(figures.largest(df, axis, quantity, _listed(highlight)))


def sweep(  # noqa: PLR0913  public
    preset: str = "quick",
    *,
    impl: str | Sequence[str] | None = None,
    out: Path | str | None = None,
    plugin: str | Sequence[str] = (),
    device: Literal["auto", "cuda", "cpu"] = "auto",
    gpu: str | None = None,
    gpus: int | Literal["all"] | None = None,
    resume: bool = True,
    timeout: float = 300.0,
    stop_after: float | None = None,
    times: str | Sequence[str] | None = None,
    **axes: Unpack[Axes],
) -> pd.DataFrame:
    """Measure as the command `tflabench sweep` does, and return the rows of all points asked for.

    Progress goes to stderr. Nothing is drawn. Kernels run in processes of their own: a crash is a row.

    Args:
        preset: what to measure: "quick", another name that `tflabench sweep --preset` takes, or a .toml file.
        impl: only these implementations, by patterns: "reference_*,sdpa", or several.
        out: the results folder; None for results/<device>/<preset>.
        plugin: files or modules whose IMPLEMENTATIONS are measured too (see `tflabench.plugin`).
        device: "auto" takes the GPU where there is one.
        gpu: the kind of GPU that this machine must have, such as "H100".
        gpus: how many GPUs of this machine measure at once; None for one.
        resume: measure only what the results folder lacks.
        timeout: seconds for one point.
        stop_after: begin no point after this many seconds; the same call then measures the rest.
        times: of each point: "cold", "graph", "eager" and "alone"; None for those of the preset.
        axes: see `Axes`: seq_len=[512, 1024], head_dim="64:256:x2", pass_="fw".

    Raises:
        InputError: what cannot be understood or run, no such devices, or a folder with rows of other sources.
        KeyboardInterrupt: what was measured until then is in the results folder.
    """
    from pathlib import Path

    from tflabench.bench.devices import Devices
    from tflabench.bench.protocol import Rules, end_of
    from tflabench.bench.request import Request
    from tflabench.bench.sweep import measure
    from tflabench.progress import ProgressPrinter
    from tflabench.rows.table import frame

    _check_text("preset", preset)
    _check_seconds("timeout", timeout, 1)
    _check_seconds("stop_after", stop_after or 0, 0)
    stop_at = end_of(stop_after)
    devices = Devices(device, gpu, gpus)
    plugins = _plugged_in(plugin)
    taken = None if times is None else _listed(times)
    request = Request(preset, _parsed(cast("Any", axes)), None if impl is None else _listed(impl), times=taken)
    rules = Rules(timeout_s=timeout, plugins=plugins, stop_at=stop_at)
    folder = None if out is None else Path(out)
    return frame(measure(request, devices, rules, folder, ProgressPrinter(), resume).rows)


def verify(
    preset: str = "quick",
    *,
    impl: str | Sequence[str] | None = None,
    plugin: str | Sequence[str] = (),
    device: Literal["auto", "cuda", "cpu"] = "auto",
    verify_seconds: float = 30.0,
    timeout: float = 600.0,
    **axes: Unpack[Axes],
) -> pd.DataFrame:
    """Compare forward and every gradient with float64, as the command `tflabench verify` does.

    Args:
        preset, impl, plugin, device, axes: as for `sweep`; the pass is "fwbw" if `axes` does not say.
        verify_seconds: what the check of one point may take; long sequences are then checked up to a step.
        timeout: seconds for one point.

    Returns:
        A row for each tensor of each point: its `error`, what is `allowed`, and whether it is `wrong`; for a point
        without a result a row with its `status` and `reason`.

    Raises:
        InputError: what cannot be understood or run.
        KeyboardInterrupt: on Ctrl-C.
    """
    from tflabench.bench import verifier
    from tflabench.bench.machine import detect
    from tflabench.rows import errors

    _check_text("preset", preset)
    for name, seconds in (("verify_seconds", verify_seconds), ("timeout", timeout)):
        _check_seconds(name, seconds, 0)
    plugins, machine = _plugged_in(plugin), detect(device)
    patterns = None if impl is None else _listed(impl)
    points = verifier.points_to_verify(preset, _parsed(cast("Any", axes)), patterns, machine)
    checked = verifier.verify(points, machine, plugins=plugins, budget_s=verify_seconds, timeout_s=timeout)
    if checked.interrupted:
        raise KeyboardInterrupt
    return errors.table(checked.results)


def profile(
    impl: str | None = None,
    *,
    plugin: str | Sequence[str] = (),
    device: Literal["auto", "cuda", "cpu"] = "auto",
    pass_: Literal["fw", "fwbw", "decode"] = "fw",
    calls: int = 7,
    count: bool = True,
    timeout: float = 300.0,
    **sizes: Unpack[CallSizes],
) -> Profile:
    """Take one call apart, as the command `tflabench profile` does: by GPU kernel, or on a CPU by operator of torch.

    Args:
        impl: one implementation; None for tfla_sig_xl, or reference_sig on a CPU.
        plugin, device: as for `sweep`.
        pass_: "fw", "fwbw" or "decode".
        calls: how many calls are profiled; times are medians over them.
        count: read the chip's counters too, with Nsight Compute.
        timeout: seconds for the profiler, and for Nsight Compute.
        sizes: see `CallSizes`.

    Raises:
        InputError: what cannot be understood or run.
    """
    from tflabench.bench.machine import detect
    from tflabench.bench.profile import point as profiles

    _check_seconds("timeout", timeout, 1)
    if not isinstance(cast("Any", calls), int) or calls < 1:
        raise InputError(f"calls is {calls!r}: it must be a whole number, 1 or more")
    plugins, machine = _plugged_in(plugin), detect(device)
    given: dict[str, Any] = {"impl": impl, **sizes}
    chunk_size = given.pop("chunk_size", None)
    point = profiles.chosen_point(machine, given, chunk_size=chunk_size, pass_=pass_)
    return profiles.profile(point, machine, calls=calls, count=count, timeout_s=timeout, plugins=plugins)


def compare(
    a: str,
    b: str,
    *,
    inside: Path | str | None = None,
    impl: str | Sequence[str] = "*",
    threshold: float | None = None,
    allow_throttled: bool = False,
) -> pd.DataFrame:
    """Hold one measurement against another, as the command `tflabench compare` does.

    Args:
        a, b: results folders; with `inside` two implementations.
        inside: a results folder.
        impl: patterns of the implementations of two folders that are compared.
        threshold: medians nearer than this are the same (0.05: 5%); None for 1% within a comparison, and 4.5% or more
            between occasions.
        allow_throttled: judge throttled rows like others.

    Returns:
        A row for each point that both have: `ratio` is b over a, `verdict` "same", "faster", "slower", "ambiguous",
        "broken" or "missing", of b. Columns of one side begin with "a." or "b.".

    Raises:
        InputError: no such folder or implementation, no point in common, or a threshold that is none.
    """
    from pathlib import Path

    import pandas as pd

    from tflabench.conclusions import compare as comparison

    if threshold is not None and not 0 <= threshold < 1:
        raise InputError(f"threshold is {threshold!r}: it must be a fraction such as 0.05")
    folder = None if inside is None else Path(inside)
    of_a, of_b = comparison.sides(str(a), str(b), folder, ",".join(_listed(impl)))
    tolerance = comparison.Tolerance(threshold, allow_throttled)
    return pd.json_normalize(comparison.compare(comparison.matched(of_a, of_b, folder), tolerance).points)


def advise(  # noqa: PLR0913  public
    gpu: str | None = None,
    *,
    d_qk: int = 256,
    d_hv: int = 512,
    heads: int = 8,
    seq_len: int = 8192,
    batch: int | None = None,
    pass_: Pass = "fwbw",
    dtype: str = "bfloat16",
    gate: str | Sequence[str] = ("exp", "sig"),
    impl: str | Sequence[str] | None = None,
    layers: int = 1,
    tokens: int | None = None,
    memory_budget: str | None = None,
    plugin: str | Sequence[str] = (),
) -> pd.DataFrame:
    """Rank kernels, chunk sizes and batches by theory, as the command `tflabench advise` does.

    Args:
        gpu: as for `optimal_chunk_size`.
        d_qk, d_hv, heads, seq_len, dtype: of a call.
        batch: sequences of one call; None for 8, or with `tokens` the best.
        pass_: "fw" or "fwbw".
        gate: any of exp and sig (mLSTM), simple_gla, gla, retention, mamba2, ...
        impl: only these implementations, by patterns.
        layers: that run the kernel.
        tokens: of a step, for which the batch is chosen.
        memory_budget: such as "8GiB"; None for all that the GPU has.
        plugin: as for `sweep`.

    Returns:
        A row for each choice, the best first: times of a call and a step in milliseconds, memory in bytes.

    Raises:
        InputError: what cannot be understood, or nothing fits the memory.
    """
    import pandas as pd

    from tflabench.bench.machine import chosen_gpu
    from tflabench.conclusions import advise as advising
    from tflabench.problem import Problem, parse_bytes

    if tokens is not None and batch is not None:
        raise InputError(f"batch is {batch} and tokens {tokens}: give one of them, tokens chooses the batch")
    _plugged_in(plugin)
    chip = chosen_gpu(gpu, dtype)
    problem = Problem(8 if batch is None else batch, heads, seq_len, d_qk, d_hv, dtype=dtype, pass_=pass_)
    memory = chip.memory_bytes if memory_budget is None else parse_bytes("memory_budget", memory_budget)
    demand = advising.Demand(problem, layers, tokens, memory)
    pattern = None if impl is None else ",".join(_listed(impl))
    advice = advising.advice(demand, chip, _listed(gate), pattern)
    advice.require_fit()
    return pd.DataFrame([advice.row(choice) for choice in advice.ranked])


def roofline(
    gpu: str | Sequence[str] = ("V100", "A100", "H100"),
    *,
    d_qk: int = 256,
    d_hv: int = 512,
    gate: Literal["exp", "sig", "gla"] = "sig",
    chunk_size: AxisValues = "16:4096:x4",
    dtype: str = "bfloat16",
    pass_: Pass = "fw",
    state_dtype: str = "float32",
) -> Figure:
    """Return a matplotlib figure of the arithmetic intensity of chunk sizes under the roofs of GPUs.

    It is what the command `tflabench roofline` draws; `plot` has measured points.

    Args:
        gpu: one or several, as for `optimal_chunk_size`.
        d_qk, d_hv, gate, dtype, pass_, state_dtype: as for `optimal_chunk_size`.
        chunk_size: L, a value, a range or several.

    Raises:
        InputError: what cannot be understood.
    """
    from tflabench.bench.machine import chosen_gpu
    from tflabench.figures.matplotlib_renderer import draw
    from tflabench.figures.roofline import of_chunk_sizes
    from tflabench.problem import Problem

    gpus = [chosen_gpu(name, dtype) for name in _listed(gpu)]
    sizes = [size for size in _parsed({"chunk_size": chunk_size})["chunk_size"] if isinstance(size, int)]
    if not (gpus and sizes):
        raise InputError(f"gpu is {gpu!r} and chunk_size {chunk_size!r}: they must name one of each at least")
    problem = Problem(1, 1, max(sizes), d_qk, d_hv, dtype=dtype, pass_=pass_)
    return draw(of_chunk_sizes(gpus, sizes, problem, gate, state_dtype=state_dtype).figure)


def _plugged_in(plugin: str | Sequence[str]) -> list[str]:
    """Return the names of plugins, whose implementations are known from here on."""
    from tflabench.implementations import registry

    plugins = _listed(plugin)
    for name in plugins:
        registry.plug_in(name)
    return plugins


def _check_seconds(name: str, value: object, least: float) -> None:
    """Raise InputError unless a limit of time is a finite number of seconds, `least` or more."""
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not least <= value < float("inf"):
        raise InputError(f"{name} is {value!r}: it must be a finite number of seconds, {least:g} or more")


def _check_text(name: str, value: object) -> None:
    """Raise InputError unless an argument is a string that says something."""
    if not isinstance(value, str) or not value:
        raise InputError(f"{name} is {value!r}: it must be a string, not empty")


def _listed(names: str | Sequence[str]) -> list[str]:
    """Return the parts of a comma-separated string, or of several of them; InputError where it is neither."""
    from tflabench.implementations.registry import split

    several: Any = [names] if isinstance(names, str) else names
    if not isinstance(several, Sequence) or any(type(word) is not str for word in cast("Sequence[Any]", several)):
        raise InputError(f"names are {names!r}: they must be a string, or a list of strings")
    return split(names if isinstance(names, str) else ",".join(names))


def _parsed(axes: Mapping[str, AxisValues]) -> dict[str, Values]:
    """Return axes as points are selected by; InputError for one that is unknown, or values that it does not take."""
    from tflabench.selection.axes import parse_values

    return {name.removesuffix("_"): parse_values(name.removesuffix("_"), _text(x)) for name, x in axes.items()}


def _text(values: AxisValues) -> str:
    """Return values of an axis as `--axis` takes them."""
    several = values if isinstance(values, Sequence) and not isinstance(values, str) else [values]
    return ",".join("auto" if value is None else str(value) for value in several)
