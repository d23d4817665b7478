"""Models of transformers at the sizes that are measured: configurations, parameters, FLOPs and bytes. No torch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from tflabench.problem import Problem
from tflabench.theory.cost import Cost
from tflabench.theory.roofline import Bounded, pass_bounds

Kernels = Literal["native", "mlstm_kernels", "mlstm_kernels_limit", "fla", "mamba_ssm", "ours", "sdpa"]
OPTIMIZER_BYTES = 36  # a parameter: read p, g, m, v and write p, m, v; write g; read p to compute


@dataclass(frozen=True)
class Architecture:
    """A model that transformers has, at one size.

    Attributes:
        kind: its module in transformers.
        config, options: the class of its configuration, and the arguments of that.
        sizes: axes of its recurrence, or of its attention where it has no recurrence.
        layers: that have it.
        bounded: which formula of `theory.roofline` counts its FLOPs and bytes.
        layer_parameters: those of one layer and its norm, without the feed-forward part.
        recurrence: the functions that compute it, with their modules; some need a package.
        blocks: that are compared with float64: one of each sort.
        attention: heads, and their dimension, of a layer of attention beside those of the recurrence.
        step: steps of which T must be a multiple.
    """

    title: str
    kind: str
    config: str
    options: dict[str, Any]
    sizes: tuple[tuple[str, int], ...]
    layers: int
    bounded: Bounded
    kernels: tuple[Kernels, ...]
    parameters: int
    layer_parameters: int
    recurrence: tuple[str, ...]
    blocks: int = 1
    attention: tuple[int, int] | None = None
    step: int = 1

    @property
    def multiplied(self) -> int:
        """Return N: the parameters that multiply activations; those of an embedding are looked up."""
        tied = self.options.get("tie_word_embeddings")
        return self.parameters - (0 if tied else self.options["vocab_size"] * self.options["hidden_size"])

    def cost(self, problem: Problem) -> Cost:
        """Return 2 N FLOPs a token, 6 N in training, and those of the recurrence; least bytes of a step.

        Bytes are those of the weights, in training with the states of AdamW, and of the recurrence's inputs and output.
        """
        tokens = problem.batch if problem.pass_ == "decode" else problem.tokens
        weights = self.parameters * (OPTIMIZER_BYTES if problem.pass_ == "fwbw" else problem.element_bytes)
        flops, moved = (3 if problem.pass_ == "fwbw" else 1) * 2.0 * self.multiplied * tokens, float(weights)
        parts: list[tuple[int, Bounded, Problem]] = [(self.layers, self.bounded, problem)]
        if self.attention:
            heads, d = self.attention
            parts.append((1, "attention", problem.with_(heads=heads, heads_qk=None, d_qk=d, d_hv=d)))
        for layers, bounded, part in parts:
            for each in decoded(bounded, part) if part.pass_ == "decode" else pass_bounds(bounded, part) or ():
                flops, moved = flops + layers * each.flops, moved + layers * each.bytes
        return Cost(flops=flops, bytes=moved)

    def layer_cost(self, problem: Problem) -> Cost:
        """Return the same of one layer with its norm, 2 N or 6 N of its parameters: no AdamW, no feed-forward part."""
        times = 3 if problem.pass_ == "fwbw" else 1
        costs = pass_bounds(self.bounded, problem) or ()
        return Cost(
            flops=times * 2.0 * self.layer_parameters * problem.tokens + sum(cost.flops for cost in costs),
            bytes=times * self.layer_parameters * problem.element_bytes + sum(cost.bytes for cost in costs),
        )


def decoded(bounded: Bounded, problem: Problem) -> tuple[Cost]:
    """Return the FLOPs and bytes of one token: a state in float32 read and written, or keys and values read."""
    heads, d_qk, d_hv = problem.batch * problem.heads, problem.d_qk, problem.d_hv
    if bounded == "attention":
        numbers = heads * problem.seq_len * (d_qk + d_hv)
        return (Cost(flops=2 * numbers, bytes=problem.element_bytes * numbers),)
    reads = 6 if bounded.endswith("delta_rule") else 4
    return (Cost(flops=reads * heads * d_qk * d_hv, bytes=8 * heads * d_qk * d_hv),)


VOCABULARY = 50304
XLSTM = Architecture(  # Table 4 of the paper
    title="xLSTM 1.4B",
    kind="xlstm",
    config="xLSTMConfig",
    options={"vocab_size": VOCABULARY, "hidden_size": 2048, "num_hidden_layers": 24, "num_heads": 8},
    sizes=(("heads", 8), ("d_qk", 128), ("d_hv", 256)),
    layers=24,
    bounded="two_gates",
    kernels=("ours", "mlstm_kernels", "mlstm_kernels_limit", "native"),
    parameters=1_421_232_512,
    layer_parameters=16_814_096,
    recurrence=(
        "mlstm_kernels.torch.backend_module.mLSTMBackend.forward",
        "transformers.models.xlstm.modeling_xlstm.xLSTMBackend.forward",
    ),
    step=64,
)
LLAMA = Architecture(
    title="Llama 1.4B",
    kind="llama",
    config="LlamaConfig",
    options={
        "vocab_size": VOCABULARY, "hidden_size": 2048, "num_hidden_layers": 24, "num_attention_heads": 16,
        "intermediate_size": 5504, "max_position_embeddings": 131072,
    },
    sizes=(("heads", 16), ("d_qk", 128), ("d_hv", 128)),
    layers=24,
    bounded="attention",
    kernels=("sdpa",),
    parameters=1_420_396_544,
    layer_parameters=16_779_264,
    recurrence=("torch.nn.functional.scaled_dot_product_attention",),
)  # fmt: skip
MAMBA2 = Architecture(
    title="Mamba 2 1.3B",
    kind="mamba2",
    config="Mamba2Config",
    options={
        "vocab_size": 50288, "hidden_size": 2048, "num_hidden_layers": 48, "num_heads": 64, "n_groups": 1,
        "tie_word_embeddings": True,
    },
    sizes=(("heads", 64), ("d_qk", 128), ("d_hv", 64)),
    layers=48,
    bounded="shared_keys",
    kernels=("ours", "mamba_ssm", "native"),
    parameters=1_343_757_312,
    layer_parameters=25_849_280,
    recurrence=tuple(
        f"transformers.models.mamba2.modeling_mamba2.mamba2_{name}"
        for name in ("split_conv1d_scan_combined", "chunk_scan", "selective_state_update")
    ),
)  # fmt: skip
QWEN3_NEXT = Architecture(
    title="Qwen3-Next, 4 layers",
    kind="qwen3_next",
    config="Qwen3NextConfig",
    options={"vocab_size": 151936, "hidden_size": 2048, "num_hidden_layers": 4, "num_experts": 0},
    sizes=(("heads_qk", 16), ("heads", 32), ("d_qk", 128), ("d_hv", 128)),
    layers=3,
    bounded="gated_delta_rule",
    kernels=("ours", "fla", "native"),
    parameters=889_179_200,
    layer_parameters=33_720_512,
    recurrence=tuple(
        f"transformers.models.qwen3_next.modeling_qwen3_next.torch_{name}_gated_delta_rule"
        for name in ("chunk", "recurrent")
    ),
    blocks=4,
    attention=(16, 256),
)
ARCHITECTURES = {
    "xlstm-1.4b": XLSTM,
    "xlstm-7b": replace(
        XLSTM, title="xLSTM 7B", options=XLSTM.options | {"hidden_size": 4096, "num_hidden_layers": 32},
        sizes=(("heads", 8), ("d_qk", 256), ("d_hv", 512)), layers=32, parameters=6_865_424_896,
        layer_parameters=67_182_608,
    ),
    "mamba2-1.3b": MAMBA2,
    "qwen3-next-4": QWEN3_NEXT,
    "llama-1.4b": LLAMA,
    # For a CPU.
    "xlstm-tiny": replace(
        XLSTM, title="xLSTM tiny",
        options=XLSTM.options
        | {"vocab_size": 256, "hidden_size": 128, "num_hidden_layers": 2, "num_heads": 2, "chunk_size": 16},
        sizes=(("heads", 2), ("d_qk", 32), ("d_hv", 64)), layers=2, parameters=493_448,
        layer_parameters=66_308, step=16,
    ),
    "llama-tiny": replace(
        LLAMA, title="Llama tiny",
        options=LLAMA.options
        | {
            "vocab_size": 256, "hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
            "intermediate_size": 384,
        },
        sizes=(("heads", 4), ("d_qk", 32), ("d_hv", 32)), layers=2, parameters=492_160, layer_parameters=65_664,
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Form:
    """A way in which a model runs.

    Attributes:
        layer: one layer alone, with its norm, gates and convolution: of attention where the model has no recurrence.
        checkpointed: activations of blocks are computed again in the backward pass.
        compiled: by torch.compile.
    """

    layer: bool = False
    checkpointed: bool = False
    compiled: bool = False

    @property
    def words(self) -> tuple[str, ...]:
        """Return what names add: "layer", "checkpointed", "compiled"."""
        return tuple(word for word in ("layer", "checkpointed", "compiled") if getattr(self, word))
