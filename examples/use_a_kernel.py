"""Run mLSTM kernels on a sequence, forward and backward, and ask which kernel ran and why."""

import torch

from tflabench import ops

B, H, T = 2, 4, 256  # batch, heads, steps
device = "cuda" if torch.cuda.is_available() else "cpu"
dtype = torch.bfloat16 if device == "cuda" else torch.float32


def main() -> None:
    """Run the mLSTM forward and backward."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(B, H, T, d, device=device, dtype=dtype, requires_grad=True) for d in (64, 64, 128))
    i, f = (torch.randn(B, H, T, device=device, requires_grad=True) for _ in range(2))  # before their activations

    h, state = ops.mlstm_sig(q, k, v, i, f + 3, return_last_state=True)  # f + 3: gates that are mostly open
    h.float().square().mean().backward()
    print(f"mLSTMsig: h {tuple(h.shape)}, state C {tuple(state.C.shape)}")
    for name, x in zip("qkvif", (q, k, v, i, f), strict=True):
        assert x.grad is not None
        print(f"  gradient of {name}: {tuple(x.grad.shape)}, norm {x.grad.norm():.3g}")

    # A document in two parts: the second goes on from the state of the first.
    first, state = ops.mlstm_exp(*(x[:, :, :100] for x in (q, k, v, i, f)), return_last_state=True)
    second = ops.mlstm_exp(*(x[:, :, 100:] for x in (q, k, v, i, f)), initial_state=state)
    whole = ops.mlstm_exp(q, k, v, i, f)
    apart = (torch.cat([first, second], dim=2) - whole).abs().max()
    print(f"mLSTMexp: two parts differ from the whole by {apart:.1g} at most")

    choice = ops.choose(q, v, gate=ops.MLSTM_SIG)
    print(f"{choice.implementation} ran, L = {choice.chunk_size}: {choice.why}")


if __name__ == "__main__":
    main()
