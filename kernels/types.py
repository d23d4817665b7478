"""Name what a caller chooses: the gates of a linear RNN, layout, chunk size, implementation. Needs no torch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

Layout: TypeAlias = Literal["bhtd", "bthd"]  # (B, H, T, d) or (B, T, H, d) for q, k, v, h; gates without d
ChunkSize: TypeAlias = int | Literal["auto"]  # steps between two states in memory
Implementation: TypeAlias = Literal["auto", "reference", "hopper", "tfla", "tfla_xl", "tfla_limit"]
GlaImplementation: TypeAlias = Literal["auto", "reference", "tfla"]
StepImplementation: TypeAlias = Literal["auto", "reference", "triton"]
ForgetGate: TypeAlias = Literal["sigmoid", "log_decay", "fixed", "rate"]
InputGate: TypeAlias = Literal["exp", "sigmoid", "step", "softplus", "none"]


@dataclass(frozen=True)
class Gate:
    """The two scalar gates of a head in `C_t = F_t C_{t-1} + I_t k_t v_t^T` (TFLA paper, eqs. 1-9).

    Attributes:
        forget: "sigmoid": F = sigmoid(f)^(1 / temperature), f (B, H, T); "log_decay": F = exp(f), f <= 0 (B, H, T);
            "fixed": F = exp(f) with one log decay a head, f (H,); "rate": F = exp(f I) with one rate f <= 0 a head,
            f (H,), and the step size I of the input gate (Mamba 2).
        input: "exp": I = exp(i); "sigmoid": I = sigmoid(i); "step": I = i > 0 (a step size); "softplus": a step size
            I = log(1 + exp(i)); all i (B, H, T); "none": I = 1 and no i.
        normalize: divide by max(|n_t . q_t|, exp(-m_t)), with n_t = F_t n_{t-1} + I_t k_t and the running maximum m_t
            that keeps an exponential input gate finite (m_t = 0 for the other input gates).
        temperature: of a sigmoid forget gate, > 0: the larger, the slower it forgets (Gated Retention's tau).

    Raises:
        ValueError: a gate of another name, or two that do not go together.
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
        if type(self.temperature) not in (int, float):
            raise TypeError(f"temperature is a {type(self.temperature).__name__}: it must be a float")
        if not 0 < self.temperature < math.inf:
            raise ValueError(f"temperature is {self.temperature}: it must be positive and finite")
        if self.temperature != 1 and self.forget != "sigmoid":
            raise ValueError(f"temperature is {self.temperature}: it must be 1 for forget {self.forget!r}")

    @property
    def per_head(self) -> bool:
        """Tell whether the forget gate is one number a head, f (H,)."""
        return self.forget in ("fixed", "rate")

    @property
    def stabilized(self) -> bool:
        """Tell whether exponents are taken relative to the running maximum m_t, which the normaliser cancels again.

        An exponential input gate without a normaliser has nothing to cancel it and may overflow, as its definition may.
        """
        return self.normalize and self.input == "exp"


MLSTM_EXP = Gate(forget="sigmoid", input="exp", normalize=True)
MLSTM_SIG = Gate(forget="sigmoid", input="sigmoid", normalize=False)
RETENTION = Gate(forget="fixed", input="none")  # Lightning attention too
SIMPLE_GLA = Gate(forget="log_decay", input="none")
MAMBA2 = Gate(forget="rate", input="step")
