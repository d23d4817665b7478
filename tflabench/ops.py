"""The operations: mLSTM and other linear RNNs, on sequences and step by step.

They are S_t = F_t S_{t-1} + I_t k_t v_t^T and h_t = S_t^T q_t, with q scaled by 1/sqrt(d_qk). They differ in the decay
F and the input gate I:

    operation on a sequence   decay F                      input gate I        also                decode step
    mlstm_exp                 sigmoid(f)                   exp(i)              h / max(|n^T q|, 1) mlstm_exp_step
    mlstm_sig                 sigmoid(f)                   sigmoid(i)                              mlstm_sig_step
    retention                 exp(log_decay), a head's     1                                       retention_step
    gated_retention           sigmoid(f)^(1/temperature)   1                                       gated_retention_step
    simple_gla                exp(g)                       1                                       simple_gla_step
    lightning_attention       exp(-slope), a head's        1                                  lightning_attention_step
    mamba2_ssd                exp(d A)                     d, the step size    (h + D x) silu(z)   mamba2_ssd_step
    gla                       exp(g), a channel's          1                                       gla_step
    delta_net                 1                            beta                v - S^T k for v     delta_net_step
    gated_delta_net           exp(g)                       beta                v - F S^T k for v   gated_delta_net_step
    kda                       exp(g), a channel's          beta                v - S^T F k for v   kda_step
    chunkwise                 any `Gate`                   any `Gate`          skip connection     step

The gates are scalars of a head, but for `gla` and `kda`, whose decays are vectors over d_qk. `delta_net`,
`gated_delta_net` and `kda` write what the state before lacks of v: the delta rule.

`choose` says which implementation an operation would run, and why. `State` is what an operation returns on request and
what a step continues from; `zero_state` makes the first one. `retnet_log_decays` and `lightning_slopes` make decays.
`Options` and `StepOptions` describe the keywords that all operations and all steps take. `mamba2_ssd` and its step take
`Mamba2Options` and `Mamba2StepOptions`, `gla` takes `GlaOptions`, delta rules take `DeltaOptions` or
`KdaOptions` and `DeltaStepOptions`.

Sequences are (B, H, T, d), or (B, T, H, d) with `layout="bthd"`; steps are (B, H, d). Gradients flow to every tensor of
an operation; a step has none. An example, which runs on any device:

    import torch
    from tflabench import ops

    q, k, v = (torch.randn(2, 4, 100, d, requires_grad=True) for d in (16, 16, 32))  # (B, H, T, d)
    i, f = (torch.randn(2, 4, 100, requires_grad=True) for _ in range(2))  # pre-activations of the gates
    h, state = ops.mlstm_exp(q, k, v, i, f, return_last_state=True)  # h is (2, 4, 100, 32)
    h.square().mean().backward()  # fills q.grad, k.grad, v.grad, i.grad, f.grad
    with torch.no_grad():  # the next token: `state` becomes the one after it
        h_next = ops.mlstm_exp_step(*(x[:, :, 0] for x in (q, k, v, i, f)), state)  # (2, 4, 32)
    print(ops.choose(q, v, gate=ops.MLSTM_EXP).why)
"""

from .kernels.api import Options, chunkwise
from .kernels.backends import Choice, choose
from .kernels.delta.gating import DELTA_NET, GATED_DELTA_NET
from .kernels.delta.operations import (
    DeltaOptions,
    DeltaStepOptions,
    delta_net,
    delta_net_step,
    gated_delta_net,
    gated_delta_net_step,
)
from .kernels.gla.gating import GLA
from .kernels.gla.operations import GlaOptions, gla, gla_step
from .kernels.kda.gating import KDA
from .kernels.kda.operations import KdaOptions, kda, kda_step
from .kernels.scalar.operations import (
    Mamba2Options,
    Mamba2StepOptions,
    gated_retention,
    gated_retention_step,
    lightning_attention,
    lightning_attention_step,
    lightning_slopes,
    mamba2_ssd,
    mamba2_ssd_step,
    mlstm_exp,
    mlstm_exp_step,
    mlstm_sig,
    mlstm_sig_step,
    retention,
    retention_step,
    retnet_log_decays,
    simple_gla,
    simple_gla_step,
)
from .kernels.scalar.plan.tfla import TileConfig
from .kernels.state import State, zero_state
from .kernels.step import StepOptions, step
from .kernels.types import (
    MAMBA2,
    MLSTM_EXP,
    MLSTM_SIG,
    RETENTION,
    SIMPLE_GLA,
    ChunkSize,
    DeltaImplementation,
    Gate,
    GlaImplementation,
    Implementation,
    KdaImplementation,
    Layout,
    StepImplementation,
)

__all__ = [
    "DELTA_NET",
    "GATED_DELTA_NET",
    "GLA",
    "KDA",
    "MAMBA2",
    "MLSTM_EXP",
    "MLSTM_SIG",
    "RETENTION",
    "SIMPLE_GLA",
    "Choice",
    "ChunkSize",
    "DeltaImplementation",
    "DeltaOptions",
    "DeltaStepOptions",
    "Gate",
    "GlaImplementation",
    "GlaOptions",
    "Implementation",
    "KdaImplementation",
    "KdaOptions",
    "Layout",
    "Mamba2Options",
    "Mamba2StepOptions",
    "Options",
    "State",
    "StepImplementation",
    "StepOptions",
    "TileConfig",
    "choose",
    "chunkwise",
    "delta_net",
    "delta_net_step",
    "gated_delta_net",
    "gated_delta_net_step",
    "gated_retention",
    "gated_retention_step",
    "gla",
    "gla_step",
    "kda",
    "kda_step",
    "lightning_attention",
    "lightning_attention_step",
    "lightning_slopes",
    "mamba2_ssd",
    "mamba2_ssd_step",
    "mlstm_exp",
    "mlstm_exp_step",
    "mlstm_sig",
    "mlstm_sig_step",
    "retention",
    "retention_step",
    "retnet_log_decays",
    "simple_gla",
    "simple_gla_step",
    "step",
    "zero_state",
]
