"""Values shared by every kernel: the gates of a linear RNN and its recurrent state. Imports no kernel."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

if TYPE_CHECKING:
    import torch
    from torch import Tensor

ForgetGate = Literal["sigmoid", "log_decay", "fixed", "rate"]
InputGate = Literal["exp", "sigmoid", "step", "softplus", "none"]


@dataclass(frozen=True)
class Gate:
    """How the two scalar gates of a head enter `C_t = F_t C_{t-1} + I_t k_t v_t^T` (formulas: TFLA paper, eqs. 1-9).

    Attributes:
        forget: "sigmoid": F = sigmoid(f)^(1 / temperature), f (B, H, T); "log_decay": F = exp(f), f <= 0 (B, H, T);
            "fixed": F = exp(f) with one log decay a head, f (H,); "rate": F = exp(f I) with one rate f <= 0 a head,
            f (H,), and the step size I of the input gate (Mamba 2).
        input: "exp": I = exp(i); "sigmoid": I = sigmoid(i); "step": I = i > 0 (a step size); "softplus": a step size
            I = log(1 + exp(i)); all i (B, H, T); "none": I = 1 and no i.
        normalize: divide by max(|n_t . q_t|, exp(-m_t)), with n_t = F_t n_{t-1} + I_t k_t and the running maximum m_t
            that keeps an exponential input gate finite (m_t = 0 for the other input gates).
        temperature: of a sigmoid forget gate, > 0: the larger, the slower it forgets (Gated Retention's tau).
    """

    forget: ForgetGate = "sigmoid"
    input: InputGate = "exp"
    normalize: bool = False
    temperature: float = 1.0

    def __post_init__(self) -> None:
        if self.forget not in get_args(ForgetGate):
            raise ValueError(f"forget is {self.forget!r}: it must be one of {', '.join(get_args(ForgetGate))}")
        if self.input not in get_args(InputGate):
            raise ValueError(f"input is {self.input!r}: it must be one of {', '.join(get_args(InputGate))}")
        if self.forget == "rate" and self.input not in ("step", "softplus"):
            raise ValueError(f"input is {self.input!r}: it must be a step size, step or softplus, for forget 'rate'")
        if not 0 < self.temperature < math.inf:
            raise ValueError(f"temperature is {self.temperature}: it must be positive and finite")
        if self.temperature != 1 and self.forget != "sigmoid":
            raise ValueError(f"temperature is {self.temperature}: it must be 1 for forget {self.forget!r}")

    @property
    def per_head(self) -> bool:
        """Whether the forget gate is one number a head, f (H,)."""
        return self.forget in ("fixed", "rate")

    @property
    def stabilized(self) -> bool:
        """Whether exponents are taken relative to the running maximum m_t, which the normaliser cancels again.

        An exponential input gate without a normaliser has nothing to cancel it and may overflow, as its definition may.
        """
        return self.normalize and self.input == "exp"


MLSTM_EXP = Gate(forget="sigmoid", input="exp", normalize=True)
MLSTM_SIG = Gate(forget="sigmoid", input="sigmoid", normalize=False)
RETENTION = Gate(forget="fixed", input="none")  # Lightning attention too
SIMPLE_GLA = Gate(forget="log_decay", input="none")
MAMBA2 = Gate(forget="rate", input="step")


class State(NamedTuple):
    """The recurrent state after a step, float32 (or float64 in the reference).

    Attributes:
        C: memory matrix (B, H, d_qk, d_hv); for a stabilised gate it is relative to m: the true matrix is exp(m) C.
        n: normaliser (B, H, d_qk), relative to m; None without a normaliser.
        m: stabiliser (B, H), -inf before anything was written; None where the gate is not stabilised.
    """

    C: Tensor
    n: Tensor | None = None
    m: Tensor | None = None


def zero_state(
    gate: Gate,
    batch: int,
    heads: int,
    d_qk: int,
    d_hv: int,
    *,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> State:
    """The state before the first step: C = n = 0, and m = -inf, the maximum of nothing. Float32 by default."""
    import torch  # here, so that listing implementations by gate needs no torch

    def full(*shape: int, value: float = 0.0) -> Tensor:
        return torch.full((batch, heads, *shape), value, device=device, dtype=dtype or torch.float32)

    C, n, m = full(d_qk, d_hv), full(d_qk), full(value=-math.inf)
    return State(C, n if gate.normalize else None, m if gate.stabilized else None)
