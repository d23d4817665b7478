"""The interface between the bench and what it measures: an Implementation says what it can run and builds Cases.

An adapter module (one a library, in `baselines/` or `bundled.py` here) defines `IMPLEMENTATIONS`, a tuple of
Implementation, and imports torch and its library inside functions only, so that listing and planning need neither.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from tflabench.implementations.packages import taken_as_installed
from tflabench.problem import DRAWN_GATES, INPUTS, InputError, Problem

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from tflabench.theory.cost import Cost
    from tflabench.theory.hardware import Gpu
    from tflabench.theory.launches import Modelled
    from tflabench.theory.roofline import Bounded

Family = Literal["mlstm", "attention", "linear_attention", "ssm", "model"]
Formulation = Literal["chunkwise", "fused", "parallel", "recurrent", "attention"]
Colour = Literal["vermilion", "blue", "green", "purple", "black", "sky", "orange", "yellow"]


@dataclass(frozen=True)
class Owner:
    """Whose implementations are: how sentences call them, and the colour that they share in every figure.

    Attributes:
        name: "fla", "softmax attention", ...
        colour: of Okabe and Ito's, which the colour-blind can tell apart.
        role: "ours"; "peer", which ours are compared with; "published", as a paper or page has it to be read: no ratio
            of ours is to it; or "reference", plain PyTorch.
        in_sentences: whether a sentence names the owner in place of the implementation.
    """

    name: str
    colour: Colour
    role: Literal["ours", "peer", "published", "reference"] = "peer"
    in_sentences: bool = True


OURS = Owner("ours", "vermilion", "ours")
PYTORCH = Owner("PyTorch", "sky", "reference")
ATTENTION = Owner("softmax attention", "black", in_sentences=False)
OTHERS = Owner("others", "orange", in_sentences=False)
OPEN = 3.0  # what is added to pre-activations of usual forget gates: mostly open, as trained models have them
WEAK = 16  # by which layers of GLA divide log decays
STRONG = -5.0  # least log decay of KDA
CLOSED_SHARE, CLOSED_STEPS = 0.01, 100  # of steps, and of channels; how long a channel is closed


class Unsupported(Exception):  # noqa: N818  public
    """Raised by `Implementation.build` for a reason that only device or library can tell; it becomes the row's."""


@dataclass(frozen=True)
class SuffixSum:
    """scale_t sum_{s >= t} terms_s, both of the shape of the gradient that it is."""

    terms: Tensor
    scale: Tensor | float = 1.0


def suffix_sum(terms: Tensor, dim: int) -> Tensor:
    """Return sum_{s >= t} terms_s along a dimension, for every t."""
    return terms.flip(dim).cumsum(dim).flip(dim)


@dataclass(frozen=True)
class FinalStates:
    """The states that a call leaves, by name, with batch, heads and time (of size 1) where the output has them.

    Attributes:
        left: returns those of the last call, in float32 (or float64).
        oracle: the same of the inputs of that call, as `Case.oracle` has the output.
    """

    left: Callable[[], Mapping[str, Tensor]]
    oracle: Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]]


@dataclass
class Case:
    """One problem made ready to run on one device, built outside every timed window.

    Attributes:
        inputs: leaf tensors by name ("q", "k", "v", "i", "f", ...), `requires_grad` set when the pass is "fwbw".
        forward: runs the implementation on `inputs` and returns its output; nothing else happens in it. It reads them
            at every call: the bench changes their values in place.
        oracle: the same function of the same inputs in plain, differentiable PyTorch, in the dtype it is given
            (float64 for the truth; the working dtype to learn what error that precision costs).
        layout: where batch, heads and time lie in every input and in the output: "bhtd" or "bthd"; gates likewise.
            The correctness gate compares single (batch, head) slices, so that the oracle stays cheap. An input with
            fewer heads than the others shares each of its heads among a group of consecutive ones (the slice is then a
            whole group). Every function is causal: the gate may compare only the first steps of a long sequence.
        as_kernels_do: (inputs, results) -> those gradients that kernels of this kind sum up from rounded results, by
            name ("d" + the input's), as sums of `results` ("forward", "d" + name by input). What is allowed is then the
            error to be expected of that sum. It is asked twice: in float64, and in the working dtype.
        linear: an input in which the output is linear, whose channels are those of the output: "v". Where the oracle
            takes fewer channels too, and takes time in proportion to steps, all of the output is then compared (see
            `bench.verify`). None for no such input.
        writes: inputs that the kernel writes, by name, such as the state of a decode step in place. They are restored
            before each call, outside what is timed; a kernel that changes another input is wrong.
        states: those that a call leaves, as a decode step does, which are compared too; None for none.
        step: what is timed where that is neither `forward` nor it and the gradients of the inputs, such as a training
            step of a whole model, of which these are a part; None elsewhere.
        call: runs an operation of this project on `inputs`, any of which keywords may replace, as they may its options;
            None for others.
        decode: the decode step of that operation, of inputs without a time axis and `state`, which it replaces; None
            where the operation is no public one.
        details: what the implementation chose, for the row: "chunk_size", "kernel", "version", ...
    """

    inputs: dict[str, Tensor]
    forward: Callable[[], Tensor]
    oracle: Callable[[Mapping[str, Tensor]], Tensor]
    layout: Literal["bhtd", "bthd"] = "bhtd"
    as_kernels_do: Callable[[Mapping[str, Tensor], Mapping[str, Tensor]], Mapping[str, SuffixSum]] | None = None
    linear: str | None = None
    writes: tuple[str, ...] = ()
    states: FinalStates | None = None
    step: Callable[[], object] | None = None
    call: Callable[..., Any] | None = None
    decode: Callable[..., Tensor] | None = None
    details: dict[str, object] = field(default_factory=dict)


class Plugin(NamedTuple):
    """Name the file or module that an implementation from outside comes from, and the hash of its sources if known."""

    name: str
    hash: str | None


@dataclass(frozen=True)
class Implementation:
    """Something that can be measured.

    Attributes:
        name: how the command line calls it, matched by --impl patterns: "tfla_sig_xl", "sdpa_flash", ...
        family: which recurrence or primitive it computes.
        title: as legends and tables write it.
        build: makes the Case for a problem on a device ("cuda" or "cpu").
        refuses: (problem, device) -> None if it can run, else the precise reason in one line. Imports no torch: finds
            packages by importlib and leaves to `build` what only the device can tell.
        gate: "exp", "sig" or None, for mLSTM rows.
        formulation: which cost model of `tflabench.theory.cost` describes it.
        chunked: whether `Problem.chunk_size` means something to it; if not, a sweep over chunk sizes runs it once.
        cost: FLOPs and bytes of one call, where these are not what `formulation` says, which None stands for.
        owner: whose it is.
        package: distribution whose version goes into the row.
        version: of a family of this project's kernels, raised when their bits or times change; None for others'.
        packages: other distributions that it needs, whose versions a run records too.
        imports: imports what it needs of its library, once for all problems; None where that takes no time.
        compiles: whether its kernels are Triton's, so that they can be compiled before it runs.
        own_process: whether each of its points is measured in a process of its own.
        tunes: whether its kernels have autotuners; it then needs a process of its own, for they remember what another
            shape made them choose.
        majors: the lowest and the highest major compute capability that its kernels take; None where a CPU does.
        shared_bytes: (problem, compute capability) -> shared memory of the program that needs most, as its launchers
            choose tiles there; None where only compiling can tell.
        workspace_bytes: problem -> memory beside inputs, outputs, their gradients and states; None for nothing to speak
            of.
        usual_chunk_size: problem -> the chunk size that it takes where none is given; None where models choose it.
        gates: strength of its forget gates where none is asked for (see `forget_gates`).
        counts: which gates of `theory.cost` it is counted as; None is `gate`, or "sig".
        tried: place in the order in which `implementation="auto"` of its operation tries kernels; None for no kernel of
            ours.
        groups: whether q and k may have fewer heads than v (`Problem.heads_qk`).
        modelled: what it is to the calibrated model, None where that does not describe it.
        operation: what it computes, by a name, where implementations of other packages compute the same and it is no
            mLSTM: "simple_gla", "mamba2", ...
        bound: which formula of `theory.roofline` bounds its problem, where its family does not say: an mLSTM has
            two gates, attention is attention. None elsewhere: no formula (Mamba).
        width: embedding of a whole model; None elsewhere, where it is that of the problem.
        sizes: axes of which it takes one value alone, with that: the heads of a whole model.
        plugin: that it comes from; None for what is bundled. Whoever loads a plugin says it.
    """

    name: str
    family: Family
    title: str
    build: Callable[[Problem, torch.device], Case]
    refuses: Callable[[Problem, str], str | None]
    gate: Literal["exp", "sig"] | None = None
    formulation: Formulation = "chunkwise"
    chunked: bool = False
    cost: Callable[[Problem], Cost] | None = None
    owner: Owner = OTHERS
    package: str = "torch"
    version: int | None = None
    packages: tuple[str, ...] = ()
    imports: Callable[[], object] | None = None
    compiles: bool = False
    own_process: bool = False
    tunes: bool = False
    majors: tuple[int, int] | None = None
    shared_bytes: Callable[[Problem, tuple[int, int]], int] | None = None
    workspace_bytes: Callable[[Problem], float] | None = None
    usual_chunk_size: Callable[[Problem], int] | None = None
    gates: str = DRAWN_GATES["normal"]
    counts: str | None = None
    tried: int | None = None
    groups: bool = False
    modelled: Modelled | None = None
    operation: str | None = None
    bound: Bounded | None = None
    width: int | None = None
    sizes: tuple[tuple[str, int], ...] = ()
    plugin: Plugin | None = None

    @property
    def bounded(self) -> Bounded | None:
        """Which formula bounds its problem, None where there is none."""
        of_family: dict[Family, Bounded] = {"mlstm": "two_gates", "attention": "attention"}
        return self.bound or of_family.get(self.family)

    @property
    def computes(self) -> str | None:
        """Return the gate of an mLSTM, or else the operation."""
        return self.gate or self.operation

    @property
    def counted_as(self) -> str:
        """Return which gates of `theory.cost` it is counted as."""
        return self.counts or self.gate or "sig"

    def with_gates(self, problem: Problem) -> Problem:
        """Return the problem with the strength of gates that it is drawn with here."""
        usual = self.gates if problem.inputs == "normal" else DRAWN_GATES.get(problem.inputs)
        return problem if problem.gates else problem.with_(gates=usual)

    def refusal(self, problem: Problem, device: str, capability: tuple[int, int] | None = None) -> str | None:
        """Return why it cannot run on a device of this compute capability, as far as that can be told from here."""
        if reason := self.refuses(problem, device):
            return reason
        if problem.group > 1 and not self.groups:
            return f"takes as many heads of q and k as of v: heads_qk must be {problem.heads}, not {problem.heads_qk}"
        lowest, highest = self.majors or (0, 0)
        if self.majors and capability and not lowest <= capability[0] <= highest:
            wanted = f"{lowest}.x" if lowest == highest else f"{lowest}.0 or above"
            return f"needs a GPU of compute capability {wanted}, not {capability[0]}.{capability[1]}"
        return None

    def refusal_on(self, problem: Problem, gpu: Gpu) -> str | None:
        """Return why it cannot run on a GPU that need not be here, or None if it can as far as facts tell.

        Asks what `refuses` asks before a launch, every package taken as installed; then the compute capability, and
        the shared memory of a program. Of a GPU whose capability is not known, kernels of one generation are refused.
        """
        with taken_as_installed():
            reason = self.refusal(problem, "cuda", gpu.capability)
        if reason:
            return reason
        if gpu.vendor != "NVIDIA":  # nothing here was ever run on another
            return f"needs an NVIDIA GPU, not one of {gpu.vendor}"
        if not self.majors:
            return None
        if gpu.capability is None:
            lowest, highest = self.majors
            only = lowest == highest
            return f"needs a GPU of compute capability {lowest}.x; that of {gpu.name} is not known" if only else None
        if self.shared_bytes is None or gpu.shared_memory_bytes is None:
            return None
        needed, there = self.shared_bytes(problem, gpu.capability), gpu.shared_memory_bytes
        if needed > there:
            return (
                f"needs {needed / 1024:.0f} KiB of shared memory a program, of which {gpu.name} has {there / 1024:.0f}"
            )
        return None

    def count(self, problem: Problem) -> Cost:
        """FLOPs and bytes of one call."""
        from tflabench.theory.call_cost import call_cost

        return self.cost(problem) if self.cost else call_cost(problem, self.formulation, self.gate)


def draw(problem: Problem, device: torch.device, shapes: Mapping[str, Sequence[int]]) -> dict[str, Tensor]:
    """Leaf tensors of `problem.dtype`, by name; `requires_grad` when the pass is "fwbw".

    A name draws the same numbers in every implementation and dtype (up to rounding): its own seed is made of
    `problem.seed` and the name. Both `problem.inputs`, "normal" and "standard", draw every value from N(0, 1); forget
    gates are then the usual ones, or N(0, 1) too, as the error table of the answers to the paper's reviews has them.

    Raises:
        InputError: `problem.inputs` is neither.
    """
    import torch

    if problem.inputs not in INPUTS:
        raise InputError(f"inputs is {problem.inputs!r}: it must be one of {', '.join(INPUTS)}")
    leaves = {}
    for name, shape in shapes.items():
        values = torch.randn(tuple(shape), generator=_generator(problem, name, device), device=device)
        leaves[name] = values.to(getattr(torch, problem.dtype)).requires_grad_(problem.pass_ == "fwbw")
    return leaves


def forget_gates(problem: Problem, device: torch.device, name: str, shape: Sequence[int], steps: int) -> Tensor:
    """Draw a leaf of pre-activations, whose log sigmoid is the log decay of a step, as strong as `problem.gates` says.

    Of x from N(0, 1) the log decays are

    - "weak": logsigmoid(x) / 16, as layers of GLA have them;
    - "usual": logsigmoid(x + 3), as mLSTM and other scalar gates;
    - "medium": logsigmoid(x);
    - "strong": -5 sigmoid(x), as KDA with its lower bound;
    - "closing": the strong ones, but -inf in 1 of 100 steps, and for 100 steps in 1 of 100 channels (of the heads,
      where these have one gate each), as at the ends of documents.

    Args:
        name: of the input, which the numbers depend on.
        steps: dimension of time in `shape`; batch is the first.
    """
    import torch
    from torch.nn.functional import logsigmoid

    generator = _generator(problem, name, device)
    x = torch.randn(tuple(shape), generator=generator, device=device)
    strength = problem.gates or DRAWN_GATES[problem.inputs]
    if strength in ("usual", "medium"):
        x = x + OPEN * (strength == "usual")
    else:
        decay = logsigmoid(x) / WEAK if strength == "weak" else STRONG * torch.sigmoid(x)
        x = decay - torch.log(-torch.expm1(decay))
    if strength == "closing":

        def uniform(*whole: int) -> Tensor:
            """Return a number for each place, alike along the dimensions that are `whole`."""
            size = [1 if at in whole else length for at, length in enumerate(shape)]
            return torch.rand(size, generator=generator, device=device)

        step = torch.arange(shape[steps], device=device).view([-1 if at == steps else 1 for at in range(len(shape))])
        since = step - (uniform(steps) * shape[steps]).long()
        channel = (uniform(steps) < CLOSED_SHARE) & (since >= 0) & (since < CLOSED_STEPS)
        reset = uniform(*(at for at in range(1, len(shape)) if at != steps)) < CLOSED_SHARE
        x = x.masked_fill(channel | reset, -torch.inf)
    return x.to(getattr(torch, problem.dtype)).requires_grad_(problem.pass_ == "fwbw")


def _generator(problem: Problem, name: str, device: torch.device) -> torch.Generator:
    import torch

    return torch.Generator(device).manual_seed(problem.seed * 2**32 + zlib.crc32(name.encode()))


def attention_inputs(
    problem: Problem, device: torch.device, layout: Literal["bhtd", "bthd"] = "bthd", **gates: tuple[int, ...]
) -> dict[str, Tensor]:
    """Draw q, k (B, T, heads of q and k, d_qk), v (B, T, H, d_hv), and gates (B, T, H, ...) by name.

    Forget gates and decays, "f" and "g", are drawn by `forget_gates`.

    Args:
        layout: "bhtd" has heads before time in all of them.
        gates: what follows B, T and H in their shapes.
    """

    def tokens(heads: int) -> tuple[int, ...]:
        steps = (problem.seq_len, heads) if layout == "bthd" else (heads, problem.seq_len)
        return (problem.batch, *steps)

    shapes: dict[str, Sequence[int]] = dict.fromkeys("qk", (*tokens(problem.heads // problem.group), problem.d_qk))
    shapes["v"] = (*tokens(problem.heads), problem.d_hv)
    shapes |= {name: (*tokens(problem.heads), *rest) for name, rest in gates.items()}
    steps = 1 if layout == "bthd" else 2
    drawn = draw(problem, device, {name: shape for name, shape in shapes.items() if name not in ("f", "g")})
    drawn |= {name: forget_gates(problem, device, name, shapes[name], steps) for name in ("f", "g") if name in gates}
    return {name: drawn[name] for name in shapes}


def decayed_inputs(problem: Problem, device: torch.device, **gates: tuple[int, ...]) -> dict[str, Tensor]:
    """Draw `attention_inputs` whose g are log decays, the log sigmoid of what is drawn."""
    from torch.nn.functional import logsigmoid

    inputs = attention_inputs(problem, device, "bthd", **gates)
    return inputs | {"g": logsigmoid(inputs["g"].detach()).requires_grad_(inputs["g"].requires_grad)}


def differentiate(
    forward: Callable[[Mapping[str, Tensor]], Tensor], inputs: Mapping[str, Tensor], output_grad: Tensor | None
) -> dict[str, Tensor]:
    """Return the output as "forward" and, with an output gradient, "d" + name for every input that has a gradient."""
    import torch

    if output_grad is None:
        with torch.no_grad():
            return {"forward": forward(inputs)}
    with torch.enable_grad():
        output = forward(inputs)
        leaves = {name: tensor for name, tensor in inputs.items() if tensor.requires_grad}
        grads = torch.autograd.grad(output, list(leaves.values()), output_grad)
    return {"forward": output.detach()} | {f"d{name}": grad for name, grad in zip(leaves, grads, strict=True)}
