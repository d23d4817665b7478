"""One sequence over the ranks of a group is one sequence in one process: values, states, gradients, and refusals.

All cases run in one set of three processes, and each is judged in a test of its own.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.multiprocessing.spawn import start_processes

from tflabench import ops
from tflabench.kernels.context import Span, check_group, spans

HEADS, D_QK, D_HV = 2, 16, 32
CUTS = [0, 11, 17, 30]  # the parts of three ranks; of two, the second and third are one
T = CUTS[-1]
DOCUMENTS = [0, 1, 3, 3, 20, 25, T]  # one without steps, one that ends on the third rank, of which the second has all
AT_BORDERS = [0, 11, 17, 30]
Arguments = Callable[[dict[str, Tensor]], list[Tensor]]

OPERATIONS: dict[str, tuple[Any, Arguments, Any]] = {
    "mlstm_exp": (ops.mlstm_exp, lambda x: [x[name] for name in "qkvif"], ops.MLSTM_EXP),
    "mlstm_sig": (ops.mlstm_sig, lambda x: [x[name] for name in "qkvif"], ops.MLSTM_SIG),
    "mamba2_ssd": (ops.mamba2_ssd, lambda x: [x["v"], x["i"].exp(), x["head"], x["k"], x["q"]], ops.MAMBA2),
    "lightning": (ops.lightning_attention, lambda x: [*(x[name] for name in "qkv"), -x["head"]], ops.RETENTION),
    "simple_gla": (ops.simple_gla, lambda x: [*(x[name] for name in "qkv"), x["g"][..., 0]], ops.SIMPLE_GLA),
    "retention": (ops.retention, lambda x: [*(x[name] for name in "qkv"), x["head"]], ops.RETENTION),
    "gla": (ops.gla, lambda x: [x[name] for name in "qkvg"], ops.GLA),
    "delta_net": (ops.delta_net, lambda x: [*(x[name] for name in "qkv"), x["beta"]], ops.DELTA_NET),
    "gated_delta_net": (
        ops.gated_delta_net,
        lambda x: [*(x[name] for name in "qkv"), x["g"][..., 0], x["beta"]],
        ops.GATED_DELTA_NET,
    ),
    "kda": (ops.kda, lambda x: [*(x[name] for name in "qkvg"), x["beta"]], ops.KDA),
}


def inputs(batch: int, dtype: torch.dtype, steps: int = T) -> dict[str, Tensor]:
    torch.manual_seed(3)

    def draw(*shape: int) -> Tensor:
        return torch.randn(batch, HEADS, steps, *shape, dtype=torch.float64)

    x = {"q": draw(D_QK), "k": draw(D_QK), "v": draw(D_HV), "f": draw() + 2, "i": draw()}
    x["k"] = torch.nn.functional.normalize(x["k"], dim=-1)
    x["g"], x["beta"], x["head"] = -0.1 * draw(D_QK).abs(), draw().sigmoid(), -torch.rand(HEADS, dtype=torch.float64)
    return {name: tensor.to(dtype) for name, tensor in x.items()}


def start_of(gate: Any, count: int, dtype: torch.dtype) -> ops.State:
    torch.manual_seed(4)
    zero = ops.zero_state(gate, count, HEADS, D_QK, D_HV, dtype=torch.float64)
    C, n, m = (None if x is None else torch.randn_like(x).to(dtype) for x in zero)
    assert C is not None
    return ops.State(C.requires_grad_(), None if n is None else n.requires_grad_(), m)


def true_state(state: ops.State) -> list[Tensor]:
    """C and n, which are relative to m."""
    factor = torch.ones(()) if state.m is None else state.m.exp()[..., None]
    return [state.C * factor[..., None] if factor.dim() else state.C, *([] if state.n is None else [state.n * factor])]


def run(
    name: str, cut: slice, dtype: torch.dtype, offsets: list[int] | None, ends_here: Tensor, steps: int, **options: Any
) -> tuple[dict[str, Tensor], Any]:
    """Return h, last states and gradients of the steps `cut`, of a loss that is a sum over steps and last states."""
    operation, arguments, gate = OPERATIONS[name]
    count = 2 if offsets is None else len(offsets) - 1
    of_steps = inputs(2 if offsets is None else 1, dtype, steps)
    leaves = {key: (x if x.dim() == 1 else x[:, :, cut]).clone().requires_grad_() for key, x in of_steps.items()}
    start = start_of(gate, count, dtype)
    if offsets is not None:
        options["cu_seqlens"] = torch.tensor(offsets)
    h, last = operation(*arguments(leaves), initial_state=start, return_last_state=True, **options)
    states = true_state(last)
    torch.manual_seed(5)
    weights = torch.randn(h.shape[0], HEADS, steps, D_HV, dtype=torch.float64).to(dtype)
    loss = (h * weights[:, :, cut]).sum()
    for n, x in enumerate(states):
        loss = loss + (x * (n + 1) * ends_here.to(dtype).view(-1, *[1] * (x.dim() - 1))).sum()
    loss.backward()
    found = {"h": h.detach(), **{f"state {n}": x.detach() for n, x in enumerate(states)}}
    found |= {f"d{key}": x.grad for key, x in leaves.items() if x.grad is not None}
    found |= {f"d initial {n}": x.grad for n, x in enumerate(start[:2]) if x is not None and x.grad is not None}
    return found, start


def deviation(
    name: str, rank: int, group: Any, cuts: list[int], offsets: list[int] | None, dtype: torch.dtype = torch.float64,
    **options: Any,
) -> str:  # fmt: skip
    """Return the largest difference from one process, in units of the largest value of each tensor, and where it is."""
    begin, end = cuts[rank : rank + 2]
    bounds = [0, cuts[-1]] if offsets is None else offsets
    last = len(cuts) - 2
    holder = [
        next(r for r, stop in enumerate(cuts[1:]) if e < stop or r == last or (e == stop and b < e))
        for b, e in pairwise(bounds)
    ]
    ends_here = torch.tensor([float(r == rank) for r in holder])
    if offsets is None:
        ends_here = ends_here.expand(2)
    found, start = run(name, slice(begin, end), dtype, offsets, ends_here, cuts[-1], group=group, **options)
    whole, _ = run(name, slice(None), torch.float64, offsets, torch.ones_like(ends_here), cuts[-1])
    for n, x in enumerate(start[:2]):  # each rank has what comes of the documents that begin on it
        if x is not None:
            found[f"d initial {n}"] = x.grad if x.grad is not None else torch.zeros_like(x)
            dist.all_reduce(found[f"d initial {n}"], group=group)
    if "dhead" in found:
        dist.all_reduce(found["dhead"], group=group)
    worst = "0"
    for key, wanted in whole.items():
        ours = found[key]
        if key.startswith("state"):
            here = ends_here.view(-1, *[1] * (wanted.dim() - 1))
            ours, wanted = ours * here, wanted * here
        elif not key.startswith("d initial") and wanted.dim() > 1:
            wanted = wanted[:, :, begin:end]
        difference = float((ours - wanted).abs().max() / whole[key].abs().max().clamp(min=1e-3))
        if not difference <= float(worst.split()[0]):
            worst = f"{difference} of {key}"
    return worst


# --- Cases, on every rank ---------------------------------------------------------------------------------------------


def case_compiled(rank: int, groups: dict[int, Any]) -> Any:
    q, k, v, i, f = OPERATIONS["mlstm_sig"][1](inputs(1, torch.float64))
    begin, end = CUTS[rank : rank + 2]
    part = [x[:, :, begin:end] for x in (q, k, v, i, f)]

    def computed(*x: Tensor) -> Any:
        operation: Any = ops.mlstm_sig
        return operation(*x, group=groups[3]) + 1

    compiled = torch.compile(computed, backend="eager")
    return float((compiled(*part) - 1 - ops.mlstm_sig(q, k, v, i, f)[:, :, begin:end]).abs().max())


def refused(steps: int = 4, d_qk: int = D_QK, device: str = "cpu", **options: Any) -> str:
    """Return the line with which an operation refuses what a rank gives."""
    x = inputs(1, torch.float64, max(steps, 1))
    q, k, v, g = (x[name][:, :, :steps].to(device) for name in "qkvg")
    try:
        ops.simple_gla(q[..., :d_qk], k[..., :d_qk], v, g[..., 0], **options)
    except (TypeError, ValueError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def among_right_calls(case: Callable[[Any], str], group: Any) -> str:
    """Return what comes of a case if a rank with a call as before goes ahead, and calls before and after it work."""
    right = [refused(group=group) for _ in range(2)]
    result = case(group)
    if result == "no error":
        result = refused(group=group)  # a rank that went ahead raises in its next call
    return result if {*right, refused(group=group)} == {"no error"} else f"right calls: {right}, then {result}"


def refused_without_log_decay(group: Any) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.delattr("tflabench.kernels.scalar.reference.log_decay")
        return refused(group=group)


WRONG: dict[str, tuple[Callable[[int, Any], str], list[str]]] = {
    "no step": (lambda rank, group: refused(0 if rank == 1 else 4, group=group), ["size", "rank 1"]),
    "shapes": (lambda rank, group: refused(d_qk=8 if rank == 1 else 16, group=group), ["d_qk is 16 on rank 0 and 8"]),
    "options": (lambda rank, group: refused(scale=float(rank), group=group), ["scale is 0.0 on rank 0 and 1.0"]),
    "offsets": (
        lambda rank, group: refused(group=group, cu_seqlens=torch.tensor([0, 4 + rank, 8])), ["checksum of cu_seqlens"]
    ),
    "offsets of one rank": (
        lambda rank, group: refused(group=group, cu_seqlens=torch.tensor([0, 4])), ["must go from 0 to T, which is 8"]
    ),
    "a family that does not join": (
        lambda rank, group: refused_without_log_decay(group), ["whose family has no log_decay"]
    ),
    "a device that the group knows nothing of": (
        lambda rank, group: refused(group=group, device="meta" if rank else "cpu"), ["no backend for meta"]
    ),
    "no group": (lambda rank, group: refused(group="world"), ["group is a str: it must be a ProcessGroup"]),
    "a kernel on one": (
        lambda rank, group: refused(group=group, implementation="hopper" if rank else "reference"), ["hopper"]
    ),
}  # fmt: skip


def case_a_rank_that_ends(rank: int, short: Any, *, agreed: bool) -> str:
    """The last cases: rank 1 is gone, or as good as gone, before a first call or behind those on which both agreed."""
    before = {refused(group=short) for _ in range(2 * agreed)}
    return "gone" if rank == 1 or before - {"no error"} else refused(group=short)


def on_rank(rank: int, folder: str) -> None:
    """Run all cases on a rank, and write what each returns."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=3)
    groups = {1: [dist.new_group([r]) for r in range(3)][rank], 2: dist.new_group([0, 1]), 3: dist.group.WORLD}
    later = dist.new_group([0, 1, 2])
    short = {agreed: dist.new_group([0, 1], timeout=timedelta(seconds=2)) for agreed in (True, False)}
    found: dict[str, Any] = {}

    def note(name: str, case: Callable[[], Any]) -> None:
        try:
            found[name] = case()
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"

    for name in OPERATIONS:
        for layout, offsets in {"one": None, "documents": DOCUMENTS, "at borders": AT_BORDERS}.items():
            if layout != "at borders" or name == "mlstm_exp":
                note(f"{name}, {layout}", lambda: deviation(name, rank, groups[3], CUTS, offsets))  # noqa: B023
    note("compiled", lambda: case_compiled(rank, groups))
    note("no NCCL", lambda: check_group(groups[3], torch.device("cuda")))
    note("alone", lambda: deviation("mlstm_exp", 0, groups[1], [0, T], DOCUMENTS))
    if rank < 2:
        options = {"implementation": "tfla", "chunk_size": 16}
        note("kernels", lambda: deviation("mlstm_exp", rank, groups[2], [0, 20, 40], None, torch.float32, **options))
        for name, (case, _) in WRONG.items():
            note(name, lambda: among_right_calls(lambda group: case(rank, group), groups[2]))  # noqa: B023
        note("another length", lambda: among_right_calls(lambda group: refused(4 + rank, group=group), groups[2]))
    # Two of the ranks have been in a group more by now.
    note("simple_gla, one, later", lambda: deviation("simple_gla", rank, later, CUTS, None))
    if rank < 2:
        for agreed, group in short.items():
            note(f"a rank that ends, {agreed}", lambda: case_a_rank_that_ends(rank, group, agreed=agreed))  # noqa: B023
    torch.save(found, f"{folder}/{rank}.pt")
    os._exit(0)  # without a goodbye to the rank that does not wait for one


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> list[dict[str, Any]]:
    folder = str(tmp_path_factory.mktemp("ranks"))
    start_processes(on_rank, (folder,), 3, start_method="fork")
    return [torch.load(f"{folder}/{rank}.pt") for rank in range(3)]


@pytest.mark.parametrize("name", [
    *(f"{name}, {layout}" for name in OPERATIONS for layout in ("one", "documents")), "mlstm_exp, at borders", "alone",
    "simple_gla, one, later",
])  # fmt: skip
def test_ranks_compute_what_one_process_does(name, results):
    for found in results:
        assert float(found[name].split()[0]) < 1e-12, found[name]


def test_kernels_on_ranks_compute_what_one_process_does(results):
    for found in results[:2]:
        assert float(found["kernels"].split()[0]) < 1e-6, found["kernels"]


def test_a_compiled_function_may_call_an_operation_on_ranks(results):
    assert max(found["compiled"] for found in results) < 1e-12


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_on_a_rank_is_an_error_of_one_line_on_each(name, results):
    for found in results[:2]:
        assert "Error: " in found[name]
        assert "\n" not in found[name]
        assert any(words in found[name] for words in WRONG[name][1]), found[name]


def test_one_rank_may_have_more_steps_than_before(results):
    assert [found["another length"] for found in results[:2]] == ["no error"] * 2


def test_a_gpu_needs_nccl(results):
    assert results[0]["no NCCL"] == "ValueError: group has the backend gloo: it must have NCCL for tensors on a GPU"


@pytest.mark.parametrize("agreed", [True, False])
def test_a_rank_that_ends_is_an_error_not_a_hang(agreed, results):
    assert "a rank of the group does not answer" in results[0][f"a rank that ends, {agreed}"]


def test_the_parts_of_documents():
    assert spans([0, 10], [4, 4, 2]) == [
        Span(0, [0, 4], False, True), Span(0, [0, 4], True, True), Span(0, [0, 2], True, False)
    ]  # fmt: skip
    assert spans([0, 4, 4, 9, 10], [4, 4, 2]) == [
        Span(0, [0, 4], False, False), Span(1, [0, 0, 4], False, True), Span(2, [0, 1, 2], True, False)
    ]  # fmt: skip
