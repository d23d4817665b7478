"""The paper's claims as data; `tflabench.conclusions.claim` says what decides them. No torch.

A claim is put to the kernels published with the paper (`nxai_*`) and to ours of the same algorithm (`tfla_*`). Its
values are ratios, times, rates or sizes of rows of one campaign: one folder, one machine, one set of versions.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import inf
from typing import TYPE_CHECKING

from tflabench.conclusions.claim import (
    Claim,
    Interval,
    Need,
    Numbers,
    Outcome,
    Stated,
    about,
    along,
    check,
    exactly,
    gigabytes_more,
    middle,
    milliseconds,
    milliseconds_more,
    rate,
    times,
)
from tflabench.conclusions.theory_claims import THEORY_CLAIMS, rising

if TYPE_CHECKING:
    from tflabench.conclusions.campaigns import Campaign

KERNELS = ("nxai", "tfla")


def check_all(campaigns: Sequence[Campaign]) -> list[Outcome]:
    """Decide every claim for every set of kernels; one outcome where nothing could tell."""
    return [
        check(claim, kernels, campaigns)
        for claim in CLAIMS
        for kernels in (("any kernel",) if claim.unmeasurable or claim.theory else KERNELS)
    ]


def _where_least(numbers: Numbers) -> list[Interval]:
    """Return where along the axis the least number lies, of the places that were tried: all within its spread."""
    best = min(numbers, key=lambda at: numbers[at].value)
    tied = [at for at, number in numbers.items() if number.low <= numbers[best].high]
    return [Interval(best, min(tied), max(tied))]


def _between_neighbours(numbers: Numbers) -> list[Interval]:
    """Return where the least number lies, of all places: as near as its tried neighbours."""
    ((best, low, high),) = _where_least(numbers)
    below, above = [at for at in numbers if at < low], [at for at in numbers if at > high]
    return [Interval(best, max(below, default=0), min(above, default=inf))]


# Head configurations of the paper: mLSTM and FLA 16 heads of 128/256 in Fig. 4, 8 of 256/512 in Figs. 5, 12 and 17 to
# 20, 32 of 128 in Fig. 13, Mamba 2 64 of 64.
_TOKENS = {"tokens": 65536, "dtype": "bfloat16"}
_FIG4 = {**_TOKENS, "cut": (16, 128, 256)}
_FIG12 = {**_TOKENS, "cut": (8, 256, 512)}
_FIG13 = {**_TOKENS, "cut": (32, 128, 128)}  # attention in Fig. 4, too
_MAMBA2 = {**_TOKENS, "cut": (64, 64, 64)}
_FW, _FWBW = {"pass_": "fw"}, {"pass_": "fwbw"}
_SIG_XL = Need("{}_sig_xl", {**_FWBW, **_FIG4, "chunk_size": 128})
_SIMPLE_GLA = {"sig": Need("{}_sig_xl", {**_FWBW, **_FIG12}), "rival": Need("fla_simple_gla", {**_FWBW, **_FIG12})}
_LIGHTNING = {
    "sig": Need("{}_sig_xl", {**_FWBW, **_FIG13, "chunk_size": 256}),
    "rival": Need("lightning_attention_2", {**_FWBW, **_FIG13}),
}
_FIG14 = {"dtype": "bfloat16", "seq_len": 8192, "batch": 4}
_FUSED_GLA = {"fused": Need("fla_gla_fused", {**_FWBW, **_FIG12}), "chunk": Need("fla_gla", {**_FWBW, **_FIG12})}

_SWEEP_FIG4 = "tflabench sweep --preset paper-fig4"
_SWEEP_FIG5 = "tflabench sweep --preset paper-fig5"
_SWEEP_FIG14 = "tflabench sweep --preset paper-fig14"

_training = partial(Claim, source="section 5.2, Fig. 4", command=f"{_SWEEP_FIG4} --pass fwbw")
_training_512 = partial(
    Claim, source="appendix E.3, Fig. 12", command="tflabench sweep --preset paper-fig12 --pass fwbw"
)
_training_128 = partial(
    Claim, source="appendix E.3, Fig. 13", command="tflabench sweep --preset paper-fig13 --pass fwbw -a head_dim=128"
)
_over_chunks = partial(
    Claim, value=lambda sig: milliseconds(sig), form="{:.1f} ms", over="chunk_size", tells=along, at_least=3
)
_of_fig5 = partial(
    _over_chunks, needs={"sig": Need("{}_sig_xl", {**_FWBW, **_FIG12, "seq_len": 8192})}, command=_SWEEP_FIG5
)
_of_fig17 = partial(
    _over_chunks,
    needs={"sig": Need("{}_sig_xl", {**_FW, **_FIG12, "seq_len": 8192})},
    command="tflabench sweep --preset paper-fig17",
)

CLAIMS = (
    _training(
        "mLSTMexp: xl_chunk about 25% faster than limit_chunk",
        needs={
            "xl": Need("{}_exp_xl", {**_FWBW, **_FIG4, "chunk_size": 128}),
            "limit": Need("{}_exp_limit", {**_FWBW, **_FIG4, "chunk_size": 64}),
        },
        value=lambda xl, limit: times(limit, xl),
        about="time of limit over xl, median",
        of=middle,
        stated=Stated(1.2, 1.3),
    ),
    Claim(
        "mLSTMsig forward over 30% faster than mLSTMexp forward",
        "section 5.2, Fig. 4",
        {
            "sig": Need("{}_sig_xl", {**_FW, **_FIG4, "chunk_size": 128}),
            "exp": Need("{}_exp_xl", {**_FW, **_FIG4, "chunk_size": 128}),
        },
        lambda sig, exp: times(exp, sig),
        about="time of exp over sig, median",
        of=middle,
        stated=Stated(low=1.3),
        command=f"{_SWEEP_FIG4} --pass fw",
    ),
    _training(
        "training: faster than FlashAttention 3 for longer T",
        needs={"sig": _SIG_XL, "rival": Need("flash_attention_3", {**_FWBW, **_FIG13})},
        value=lambda sig, rival: times(rival, sig),
        about="time of the other over sig at the longest T",
        of=lambda numbers: [numbers[max(numbers)]],
        stated=Stated(low=1),
    ),
    _training(
        "training: Simple GLA keeps up with mLSTM",
        needs={"sig": _SIG_XL, "rival": Need("fla_simple_gla", {**_FWBW, **_FIG4})},
        value=lambda sig, rival: times(rival, sig),
        about="time of Simple GLA over sig at every T",
        stated=about(1, 1),
    ),
    _training(
        "training: over 2x faster than Mamba 2 at all T",
        needs={"sig": _SIG_XL, "rival": Need("mamba2", {**_FWBW, **_MAMBA2})},
        value=lambda sig, rival: times(rival, sig),
        about="time of the other over sig at every T",
        stated=Stated(low=2),
    ),
    *(
        Claim(
            f"forward: {title} slightly faster (within 1 ms)",
            "appendix E.3, Fig. 4",
            {"sig": Need("{}_sig_xl", {**_FW, **_FIG4, "chunk_size": 128}), "rival": rival},
            lambda sig, rival: milliseconds_more(sig, rival),
            form="{:.2f} ms",
            about="ms of sig minus the other at every T",
            stated=Stated(0, 1),
            command=f"{_SWEEP_FIG4} --pass fw",
        )
        for title, rival in (
            ("Mamba 2", Need("mamba2", {**_FW, **_MAMBA2})),
            ("Simple GLA", Need("fla_simple_gla", {**_FW, **_FIG4})),
        )
    ),
    _training_512(  # "slightly faster (within 3 ms or 15%)": of training alone, as Fig. 12 shows it, and in two units
        "training at d_hv 512: Simple GLA slightly faster, within 15%",
        needs=_SIMPLE_GLA,
        value=lambda sig, rival: times(sig, rival),
        about="time of sig over Simple GLA at every T",
        stated=Stated(1, 1.15),
    ),
    _training_512(
        "... and within 3 ms",
        needs=_SIMPLE_GLA,
        value=lambda sig, rival: milliseconds_more(sig, rival),
        form="{:.2f} ms",
        about="ms of sig minus Simple GLA at every T",
        stated=Stated(0, 3),
    ),
    _training_512(
        "... but takes almost twice the memory",
        needs=_SIMPLE_GLA,
        value=lambda sig, rival: exactly(rival.peak_bytes, sig.peak_bytes),
        about="peak memory of Simple GLA over sig, median",
        of=middle,
        stated=Stated(1.5, 2),
    ),
    _training_128(
        "head dimension 128: LightningAttention-2 over 3x slower than sig, L = 256",
        needs=_LIGHTNING,
        value=lambda sig, rival: times(rival, sig),
        about="time of the other over sig at every T",
        stated=Stated(low=3),
    ),
    _training_128(
        "... but takes 1.1 GB less memory (6.2 to 7.3 GB)",
        needs=_LIGHTNING,
        value=lambda sig, rival: gigabytes_more(sig, rival),
        form="{:.2f} GB",
        about="peak memory of sig minus the other, median",
        of=middle,
        stated=Stated(7.25 - 6.25, 7.35 - 6.15),
    ),
    _of_fig5(
        "measured: the best L is about 128 to 256",
        "section 5.2, Fig. 5",
        about="L of the least measured time, of those tried",
        of=_where_least,
        stated=about(128, 256),
    ),
    _of_fig5(
        "L = 256 as fast as L = 128",
        "section 5.2, Fig. 5",
        about="time at L = 256 over that at 128",
        of=lambda numbers: [numbers[256] / numbers[128]] if {128, 256} <= numbers.keys() else [],
        stated=Stated(0.95, 1.05),
    ),
    Claim(
        "limit_chunk is slower at L = 128 than at 64",
        "section 5.2",
        {"limit": Need("{}_exp_limit", {**_FWBW, "tokens": 65536, "cut": (16, 128, 256), "seq_len": 8192})},
        lambda limit: milliseconds(limit),
        form="{:.1f} ms",
        about="time at L = 128 over that at 64",
        of=lambda numbers: [numbers[128] / numbers[64]] if {64, 128} <= numbers.keys() else [],
        stated=Stated(low=1),
        over="chunk_size",
        tells=along,
        command="tflabench sweep --preset chunk --pass fwbw -a chunk_size=64,128",
    ),
    Claim(
        "forward: limit_chunk as fast as xl_chunk at heads of 32 and 64",
        "appendix E.3, Fig. 14",
        {
            "limit": Need("{}_exp_limit", {**_FW, **_FIG14, "chunk_size": 64}),
            "xl": Need("{}_exp_xl", {**_FW, **_FIG14}),
        },
        lambda limit, xl: times(limit, xl) if limit.d_hv <= 64 else None,
        about="time of limit over xl at heads of 32 and 64",
        stated=about(1, 1),
        over="d_hv",
        command=f"{_SWEEP_FIG14} --pass fw",
    ),
    Claim(
        "fast at all head sizes",
        "answers to the reviews, Fig. 14",
        {"sig": Need("{}_sig_xl", {**_FW, **_FIG14}), "rival": Need("fla_simple_gla", {**_FW, **_FIG14})},
        lambda sig, rival: times(sig, rival),
        about="time of sig over Simple GLA, forward, at every head size",
        stated=Stated(high=1.2),
        over="d_hv",
        command=f"{_SWEEP_FIG14} --pass fw",
    ),
    _training_512(
        "the fused GLA is no faster than GLA chunk ...",
        needs=_FUSED_GLA,
        value=lambda fused, chunk: times(fused, chunk),
        about="time of the fused GLA over the other at every T",
        stated=Stated(low=1),
    ),
    _training_512(
        "... and takes the least memory of fla's",
        needs=_FUSED_GLA,
        value=lambda fused, chunk: exactly(fused.peak_bytes, chunk.peak_bytes),
        about="peak memory of the fused GLA over the other",
        stated=Stated(high=1),
    ),
    _of_fig17(
        "theory: the best L is about 630",
        "appendix G, eq. 121",
        value=lambda sig: exactly(sig.model_ms_upper),
        about="L of the least modelled time (upper bound), between those beside it",
        of=_between_neighbours,
        stated=about(630, 630),
        kind="modelled",
    ),
    _of_fig17(
        "FLOP/s rise with L ...",
        "appendix G, Fig. 20",
        value=lambda sig: rate(sig),
        form="{:.0f} TFLOP/s",
        about="counted FLOPs over measured time, over those of the L before",
        of=rising,
        stated=Stated(low=1),
    ),
    _of_fig17(
        "... although runtime does not fall",
        "appendix G, Figs. 17, 20",
        about="time at the largest L over the least at another",
        of=lambda numbers: [numbers[max(numbers)] / min(numbers[at] for at in sorted(numbers)[:-1])],
        stated=Stated(low=1),
    ),
    _of_fig5(
        "L is the knob that trades memory for batch size",
        "answers to the reviews",
        value=lambda sig: exactly(sig.peak_bytes, 2.0**30),
        form="{:.2f} GiB",
        about="peak memory at the largest L over that at the smallest",
        of=lambda numbers: [numbers[max(numbers)] / numbers[min(numbers)]],
        stated=Stated(high=1),
    ),
    Claim(
        "choosing L can be automated",
        "answers to the reviews",
        {
            "auto": Need("{}_sig_xl", {**_FWBW, **_FIG12, "auto": True}),
            "swept": Need("{}_sig_xl", {**_FWBW, **_FIG12, "auto": False}),
        },
        lambda auto, swept: times(auto, swept),
        about="time at the chosen L over the best swept one",
        stated=Stated(high=1.05),
        at_least=1,
        command=_SWEEP_FIG5,
    ),
    Claim(
        "error of exp forward the same for every L, 64 to 2048",
        "answers to the reviews",
        {"exp": Need("{}_exp_xl", {**_FW, **_FIG4, "seq_len": 8192})},
        lambda exp: exactly(exp.rel_error),
        form="{:.1e}",
        about="greatest error over the least",
        of=lambda numbers: [max(numbers.values()) / min(numbers.values())],
        stated=Stated(0.5, 1.5),
        over="chunk_size",
        at_least=3,
        kind="counted",
        command=f"{_SWEEP_FIG4} --pass fw -a seq_len=8192 -a chunk_size=64:2048:x2",
    ),
    *(
        Claim(
            f"mean absolute error of exp forward {error} ({dtype}), for every L",
            "answers to the reviews",
            unmeasurable=f"the figure is {quantity}, which no check measures",
        )
        for dtype, error, quantity in (
            ("float32", "7.86e-4", "of TF32 products with truncated operands (7.83e-4 here)"),
            ("bfloat16", "2.905e-3", "against inputs before rounding (2.78e-3 to 3.00e-3 here)"),
        )
    ),
    Claim(
        "training step of a 1.4B model: Llama 2.39 s, mLSTM 1.64 to 1.67 s",
        "answers to the reviews",
        unmeasurable="its time is that of a whole model: see docs/models.md",
    ),
    *THEORY_CLAIMS,
)
