"""Read a prompt with the sequence kernel, then decode token by token from its state."""

import time

import torch

from tflabench import ops

B, H, PROMPT, STEPS, D = 1, 4, 512, 32, 64
device = "cuda" if torch.cuda.is_available() else "cpu"


@torch.no_grad()
def main() -> None:
    """Continue a prompt step by step, and compare with the whole sequence."""
    torch.manual_seed(0)
    T = PROMPT + STEPS
    q, k, v = (torch.randn(B, H, T, D, device=device) for _ in range(3))
    i, f = (torch.randn(B, H, T, device=device) for _ in range(2))

    prompt = [x[:, :, :PROMPT] for x in (q, k, v, i, f)]
    _, state = ops.mlstm_exp(*prompt, return_last_state=True)
    size = sum(x.nbytes for x in (state.C, state.n, state.m) if x is not None)
    print(f"after {PROMPT} tokens the state has {size / 2**10:.0f} KiB, and stays as large")

    decoded, start = [], time.perf_counter()
    for t in range(PROMPT, T):
        token = [x[:, :, t] for x in (q, k, v, i, f)]  # (B, H, d), gates (B, H)
        decoded.append(ops.mlstm_exp_step(*token, state=state))  # `state` becomes the one after this token
    seconds = (time.perf_counter() - start) / STEPS
    print(f"{STEPS} tokens decoded, {seconds * 1e6:.0f} µs each on {device}")

    whole = ops.mlstm_exp(q, k, v, i, f)[:, :, PROMPT:]
    error = (torch.stack(decoded, dim=2) - whole).norm() / whole.norm()
    print(f"relative to one call over all {T} tokens they are off by {error:.1g}")


if __name__ == "__main__":
    main()
