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

from .kernels.api import Options as Options
from .kernels.api import chunkwise as chunkwise
from .kernels.backends import Choice as Choice
from .kernels.backends import choose as choose
from .kernels.delta.gating import DELTA_NET as DELTA_NET
from .kernels.delta.gating import GATED_DELTA_NET as GATED_DELTA_NET
from .kernels.delta.operations import DeltaOptions as DeltaOptions
from .kernels.delta.operations import DeltaStepOptions as DeltaStepOptions
from .kernels.delta.operations import delta_net as delta_net
from .kernels.delta.operations import delta_net_step as delta_net_step
from .kernels.delta.operations import gated_delta_net as gated_delta_net
from .kernels.delta.operations import gated_delta_net_step as gated_delta_net_step
from .kernels.gla.gating import GLA as GLA
from .kernels.gla.operations import GlaOptions as GlaOptions
from .kernels.gla.operations import gla as gla
from .kernels.gla.operations import gla_step as gla_step
from .kernels.kda.gating import KDA as KDA
from .kernels.kda.operations import KdaOptions as KdaOptions
from .kernels.kda.operations import kda as kda
from .kernels.kda.operations import kda_step as kda_step
from .kernels.scalar.operations import Mamba2Options as Mamba2Options
from .kernels.scalar.operations import Mamba2StepOptions as Mamba2StepOptions
from .kernels.scalar.operations import gated_retention as gated_retention
from .kernels.scalar.operations import gated_retention_step as gated_retention_step
from .kernels.scalar.operations import lightning_attention as lightning_attention
from .kernels.scalar.operations import lightning_attention_step as lightning_attention_step
from .kernels.scalar.operations import lightning_slopes as lightning_slopes
from .kernels.scalar.operations import mamba2_ssd as mamba2_ssd
from .kernels.scalar.operations import mamba2_ssd_step as mamba2_ssd_step
from .kernels.scalar.operations import mlstm_exp as mlstm_exp
from .kernels.scalar.operations import mlstm_exp_step as mlstm_exp_step
from .kernels.scalar.operations import mlstm_sig as mlstm_sig
from .kernels.scalar.operations import mlstm_sig_step as mlstm_sig_step
from .kernels.scalar.operations import retention as retention
from .kernels.scalar.operations import retention_step as retention_step
from .kernels.scalar.operations import retnet_log_decays as retnet_log_decays
from .kernels.scalar.operations import simple_gla as simple_gla
from .kernels.scalar.operations import simple_gla_step as simple_gla_step
from .kernels.scalar.plan.tfla import TileConfig as TileConfig
from .kernels.state import State as State
from .kernels.state import zero_state as zero_state
from .kernels.step import StepOptions as StepOptions
from .kernels.step import step as step
from .kernels.types import MAMBA2 as MAMBA2
from .kernels.types import MLSTM_EXP as MLSTM_EXP
from .kernels.types import MLSTM_SIG as MLSTM_SIG
from .kernels.types import RETENTION as RETENTION
from .kernels.types import SIMPLE_GLA as SIMPLE_GLA
from .kernels.types import ChunkSize as ChunkSize
from .kernels.types import DeltaImplementation as DeltaImplementation
from .kernels.types import Gate as Gate
from .kernels.types import GlaImplementation as GlaImplementation
from .kernels.types import Implementation as Implementation
from .kernels.types import KdaImplementation as KdaImplementation
from .kernels.types import Layout as Layout
from .kernels.types import StepImplementation as StepImplementation

__all__ = [name for name in dir() if not name.startswith("_")]  # pyright: ignore[reportUnsupportedDunderAll]
