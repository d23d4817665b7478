"""Name what a caller chooses: the gates of a linear RNN, layout, chunk size, implementation. Needs no torch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias, get_args

Layout: TypeAlias = Literal["bhtd", "bthd"]  # (B, H, T, d) or (B, T, H, d) for q, k, v, h; gates without d
ChunkSize: TypeAlias = int | Literal["auto"]  # steps between two states in memory
Implementation: TypeAlias = Literal["auto", "reference", "hopper", "tfla", "tfla_xl", "tfla_limit"]
GlaImplementation: TypeAlias = Literal["auto", "reference", "hopper", "tfla"]
KdaImplementation: TypeAlias = Literal["auto", "reference", "hopper", "tfla"]
DeltaImplementation: TypeAlias = Literal["auto", "reference", "hopper", "tfla"]
StepImplementation: TypeAlias = Literal["auto", "reference", "triton"]
ForgetGate: TypeAlias = Literal["sigmoid", "log_decay", "fixed", "rate"]
InputGate: TypeAlias = Literal["exp", "sigmoid", "step", "softplus", "none"]
ForgetOf: TypeAlias = Literal["head", "step", "channel"]
# The f of each forget gate that forgets nothing, and the i of each input gate that writes nothing.
OPEN: dict[str, float] = {"sigmoid": math.inf, "log_decay": 0.0, "fixed": 0.0, "rate": 0.0}
SHUT: dict[str, float] = {"exp": -math.inf, "sigmoid": -math.inf, "step": 0.0, "softplus": -math.inf, "none": -math.inf}


class Gating:
    """Describe the gates of a family to the operations; each family has a frozen dataclass for its gates.

    Attributes:
        family: the family that computes them, a name in `families.FAMILIES`.
        normalize: the state has a normaliser n, which h is divided by.
        temperature: a number that may change from call to call without compiling anew.
    """

    family: ClassVar[str]
    normalize: bool = False
    temperature: float = 1.0

    @property
    def fields(self) -> tuple[Any, ...]:
        """Return the arguments that make an equal object of this class, but for its temperature."""
        return ()

    @property
    def forget_of(self) -> ForgetOf | None:
        """Say how many numbers f has: one a "head", (H,), one a "step", (B, H, T), or one a "channel", (B, H, T, d_qk).

        H is that of v. None where there is no f.
        """
        return "step"

    @property
    def per_head(self) -> bool:
        """Tell whether the forget gate is one number a head, f (H,)."""
        return self.forget_of == "head"

    @property
    def writes(self) -> bool:
        """Tell whether there is i (B, H, T), such as an input gate or the beta of a delta rule."""
        return False

    @property
    def decays(self) -> bool:
        """Tell whether f is the logarithm of a decay, at most 0."""
        return True

    @property
    def stabilized(self) -> bool:
        """Tell whether the state has a stabiliser m."""
        return False


@dataclass(frozen=True)
class Gate(Gating):
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

    family = "scalar"
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
        temperature: Any = self.temperature
        if isinstance(temperature, bool) or not isinstance(temperature, (int, float)):
            raise TypeError(f"temperature is a {type(self.temperature).__name__}: it must be a float")
        if not 0 < self.temperature < math.inf:
            raise ValueError(f"temperature is {self.temperature}: it must be positive and finite")
        if self.temperature != 1 and self.forget != "sigmoid":
            raise ValueError(f"temperature is {self.temperature}: it must be 1 for forget {self.forget!r}")

    @property
    def fields(self) -> tuple[Any, ...]:
        """Return the forget gate, the input gate, and whether there is a normaliser."""
        return self.forget, self.input, self.normalize

    @property
    def forget_of(self) -> ForgetOf:
        """Tell whether f is one number a head or a step."""
        return "head" if self.forget in ("fixed", "rate") else "step"

    @property
    def writes(self) -> bool:
        """Tell whether there is an input gate."""
        return self.input != "none"

    @property
    def decays(self) -> bool:
        """Tell whether f is the logarithm of a decay."""
        return self.forget in ("log_decay", "fixed", "rate")

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
