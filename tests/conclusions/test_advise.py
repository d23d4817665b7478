"""Advice: what fits, what is fastest, what is on the frontier."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tflabench.conclusions import advise
from tflabench.conclusions.advise import Candidate, Demand, Refused
from tflabench.implementations import registry
from tflabench.implementations.adapter import Implementation
from tflabench.problem import InputError, Problem
from tflabench.theory import hardware
from tflabench.theory.calibrated import predict
from tflabench.theory.chunk_size import Tradeoff
from tflabench.theory.hardware import Ceilings, Gpu
from tflabench.theory.roofline import TimeBounds

GIB = 2**30


SIG, EXP, FUSED, PUBLISHED = map(registry.get, ("tfla_sig_xl", "tfla_exp_xl", "hopper_sig", "nxai_sig_xl"))
FIG_4 = Problem(16, 16, 4096, 128, 256, pass_="fwbw")
H200 = hardware.find("H200")
# What an H200 was measured to reach (calibrate: 782 TFLOP/s, 4.262 TB/s), as in decisions/2026-11-23-triton-tilings.md.
BARE = Gpu("bare", Ceilings(989e12, 3.35e12, "given", ""))  # of which no more is known
MEASURED_H200 = replace(H200, ceilings=Ceilings(782e12, 4.262e12, "given", ""))


@pytest.mark.parametrize(
    ("kernel", "size", "measured_ms"),
    [
        (SIG, 64, 5.42),
        (SIG, 128, 4.60),
        (SIG, 256, 4.42),
        (SIG, 512, 5.04),
        (EXP, 256, 4.88),
        (FUSED, 4096, 2.13),
        (PUBLISHED, 128, 8.22),
    ],
)
def test_predictions_come_near_the_times_in_kernels_measured_md(kernel, size, measured_ms):
    problem = FIG_4.with_(chunk_size=size)
    predicted = predict(kernel.modelled, kernel.count(problem), problem, MEASURED_H200)
    assert predicted.source == "calibrated model"
    assert predicted.seconds * 1e3 == pytest.approx(measured_ms, rel=0.25)


def test_without_clocks_and_multiprocessors_the_published_bound_is_what_remains():
    (choice,) = advise.choices(Demand(FIG_4), SIG, [128], BARE)
    assert choice.source == "published bound"
    assert choice.call_s == pytest.approx(float(choice.bounds.upper))
    assert choice.outside is None


def test_a_bound_comes_after_what_the_model_says_of_others():
    """mlstm_kernels has forms in plain PyTorch, of which only the published bound is known: real times exceed it."""
    given = advise.advice(Demand(FIG_4), hardware.find("A100"), ["sig", "exp"], "nxai_*")
    sources = [choice.source for choice in given.ranked]
    assert sources == sorted(sources), "calibrated model, then published bound"
    assert len(set(sources)) == 2
    assert {choice.source for choice in given.frontier} == {"calibrated model"}


@pytest.mark.parametrize(
    ("problem", "kernel", "size", "gib"),
    [
        (FIG_4, SIG, 256, 2.91 + 0.5),  # peak of decisions/2026-11-23-triton-tilings.md, and the h that it leaves out
        (Problem(8, 8, 8192, 256, 512, pass_="fwbw"), SIG, 4096, 3.17),
        (FIG_4, FUSED, 4096, 3.16),
        (FIG_4, PUBLISHED, 128, 5.09),
    ],
)
def test_memory_is_what_was_measured(problem, kernel, size, gib):
    peak = advise.memory(kernel, problem.with_(chunk_size=size)).peak
    assert peak / GIB == pytest.approx(gib, rel=0.08)


def test_a_forward_keeps_nothing_and_layers_add_what_their_backward_needs():
    assert advise.memory(SIG, FIG_4.with_(pass_="fw", chunk_size=64)).kept == 0
    one = advise.memory(SIG, FIG_4.with_(chunk_size=64))
    assert 0 < one.kept < one.peak
    alone, stacked = (advise.choices(Demand(FIG_4, layers), SIG, [64], H200)[0].memory_bytes for layers in (1, 24))
    assert alone == one.peak
    assert stacked == pytest.approx(one.peak + 23 * one.kept)


def test_a_larger_chunk_takes_less_memory_and_so_buys_batch():
    demand = Demand(FIG_4, memory_bytes=40 * GIB)
    small, large = advise.choices(demand, SIG, [64, 1024], H200)
    assert large.memory_bytes < small.memory_bytes
    assert small.largest_batch is not None
    assert large.largest_batch is not None
    assert large.largest_batch > small.largest_batch
    for choice in (small, large):
        fitting = choice.memory_bytes / 16 * (choice.largest_batch or 0)
        assert fitting <= 40 * GIB < fitting + choice.memory_bytes / 16


def test_the_batch_of_a_step_is_the_largest_that_pays_and_fits():
    demand = Demand(FIG_4, layers=10, tokens=64 * 4096, memory_bytes=30 * GIB)
    best = advise.rank(advise.choices(demand, SIG, [256], H200))[0]
    assert best.fits
    assert best.calls * best.problem.batch >= 64
    assert best.step_s == pytest.approx(10 * best.calls * best.call_s)
    assert best.memory_bytes <= 30 * GIB
    alone = advise.rank(advise.choices(replace(demand, memory_bytes=None), SIG, [256], H200))[0]
    assert alone.problem.batch == 64, "without a limit, all of it at once"
    assert alone.step_s < best.step_s


def choice(
    step_s: float, gib: float, largest: int | None = None, kernel: Implementation = SIG, size: int = 64
) -> Candidate:
    problem = FIG_4.with_(chunk_size=size)
    bounds = TimeBounds(step_s, step_s)
    return Candidate(kernel, problem, step_s, "published bound", bounds, 1, step_s, gib * GIB, largest)


def test_the_frontier_keeps_what_nothing_beats_in_both():
    fast, slow, small, beaten = choice(1, 9), choice(3, 9), choice(2, 4), choice(2.5, 5)
    assert advise.frontier([slow, beaten, fast, small]) == [small, fast]
    assert advise.frontier([slow, fast, small], gain=0.4) == [small, fast]
    assert advise.frontier([slow, fast, small], gain=0.6) == [small]


def test_what_does_not_fit_ranks_last():
    fitting, too_big = choice(5, 1, 16), choice(1, 90, 15, size=128)
    assert advise.rank([too_big, fitting]) == [fitting, too_big]
    assert not too_big.fits


def test_every_bundled_kernel_is_advised_where_it_takes_the_sizes_and_named_where_not():
    given = advise.advice(Demand(FIG_4), H200, ["sig", "exp"])
    kernels = {choice.kernel.name for choice in given.ranked}
    assert {"tfla_sig_limit", "tfla_sig_xl", "tfla_exp_limit", "tfla_exp_xl"} <= kernels
    assert not any(name.startswith("reference") for name in kernels)
    limits = {choice.problem.chunk_size for choice in given.ranked if choice.kernel.name == "tfla_sig_limit"}
    assert limits == {64, 128}, "one level of tiles"
    odd = Demand(FIG_4.with_(d_qk=100))
    with pytest.raises(InputError, match=r"no kernel can run this.*takes a d_qk that is a multiple of 16"):
        advise.advice(odd, H200, ["sig"])
    wide = advise.advice(Demand(FIG_4.with_(d_qk=512)), H200, ["sig"])
    assert Refused("hopper_sig", None, "takes a d_qk that is a multiple of 16 from 32 to 256, not 512") in wide.refused


def test_the_other_linear_rnns_are_advised_too():
    mamba_2 = Demand(Problem(16, 64, 4096, 64, 64, pass_="fwbw"))
    given = advise.advice(mamba_2, MEASURED_H200, ["mamba2", "simple_gla"])
    assert {choice.kernel.name for choice in given.ranked} == {
        "hopper_mamba2", "tfla_mamba2_xl", "hopper_simple_gla", "tfla_simple_gla_xl",
    }  # fmt: skip
    best: dict[str, Candidate] = {}
    for choice in given.ranked:
        best.setdefault(choice.kernel.name, choice)
    assert best["hopper_mamba2"].problem.chunk_size == 4096
    # q, k and their gradients are one head's, not those of 64.
    tokens, width = 65536, 64 * 2
    less = best["hopper_simple_gla"].memory_bytes - best["hopper_mamba2"].memory_bytes
    of_tiles = 64 * tokens * width  # C before every tile, where heads share q and k
    assert less == pytest.approx(4 * 63 * tokens * width - of_tiles, rel=0.05)
    assert {choice.source for choice in given.ranked} == {"calibrated model"}
    (bound,) = advise.choices(mamba_2, registry.get("tfla_mamba2_xl"), [256], BARE)
    assert bound.source == "published bound"


@pytest.mark.parametrize("pass_", ["fw", "fwbw"])
def test_the_memory_of_gla_is_what_its_kernels_allot(pass_, monkeypatch):
    """Tensors of a call, on a device without memory; less the float32 states at the ends of sequences, a hundredth."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    from tflabench.kernels.common.contract import Arguments, KernelOptions
    from tflabench.kernels.gla import chunkwise, gradients, outputs, scores, states
    from tflabench.kernels.gla.gating import GLA

    for module in (gradients, outputs, scores, states):
        monkeypatch.setattr(module, "enqueue", lambda *args, **options: None)
    monkeypatch.setattr(chunkwise, "made_like", lambda x, like: x)
    problem = Problem(4, 16, 4096, 128, 256, chunk_size=256, pass_=pass_)
    allotted = []

    class Allocations(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            if "empty" in func.__name__:
                allotted.append(out.nbytes)
            return out

    def empty(d):
        return torch.empty(4, 16, 4096, d, dtype=torch.bfloat16, device="meta")

    q, k, v, g = (empty(d) for d in (128, 128, 256, 128))
    arguments, options = Arguments(q, k, v, g), KernelOptions(GLA, 1.0, 256, return_last_state=False)
    with Allocations():
        if pass_ == "fw":
            chunkwise.forward(arguments, options)
        else:
            chunkwise.backward(v, None, arguments, (), options)
    given = sum(x.nbytes for x in (q, k, v, g))
    if pass_ == "fwbw":
        given += 2 * v.nbytes  # o and do
    modelled = advise.memory(registry.get("tfla_gla_xl"), problem).peak
    assert modelled == pytest.approx(given + sum(allotted), rel=0.03)


def test_gla_is_advised_by_the_papers_bound():
    h100 = hardware.find("H100")
    found = advise.advice(Demand(FIG_4), h100, ["gla"])
    assert {choice.kernel.name for choice in found.ranked} == {"hopper_gla", "tfla_gla_xl"}
    assert {choice.source for choice in found.ranked} == {"published bound"}
    counted = Tradeoff(FIG_4, "gla", h100.ceilings, state_bytes=2, counts="exact")
    for choice in found.ranked:
        if choice.kernel.name == "tfla_gla_xl":  # the fused kernels have counts of their own
            assert choice.call_s == pytest.approx(float(counted.time(choice.problem.chunk_size).upper))
