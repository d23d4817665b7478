"""Read prompts of different lengths in one call, then go on with each from its own state."""

import torch

from tflabench import ops

H, D = 4, 64
LENGTHS = [300, 17, 128, 64]
device, dtype = ("cuda", torch.bfloat16) if torch.cuda.is_available() else ("cpu", torch.float32)


@torch.no_grad()
def main() -> None:
    """Compare a call for all prompts with a call for each."""
    torch.manual_seed(0)
    T = sum(LENGTHS)
    q, k, v = (torch.randn(1, H, T, D, device=device, dtype=dtype) for _ in range(3))
    i, f = (torch.randn(1, H, T, device=device) for _ in range(2))

    cu_seqlens = torch.tensor([0, *LENGTHS]).cumsum(0)  # where prompts begin and end; on the CPU nothing waits for it
    h, states = ops.mlstm_exp(q, k, v, i, f, cu_seqlens=cu_seqlens, return_last_state=True)
    print(f"{len(LENGTHS)} prompts, {T} tokens: h {tuple(h.shape)}, a state for each, C {tuple(states.C.shape)}")

    apart = []
    for begin, end in zip(cu_seqlens[:-1].tolist(), cu_seqlens[1:].tolist(), strict=True):
        apart.append(ops.mlstm_exp(*(x[:, :, begin:end] for x in (q, k, v, i, f))))
    wanted = torch.cat(apart, dim=2)
    print(f"relative to a call for each they are off by {((h - wanted).norm() / wanted.norm()).item():.1g}")

    batch = len(LENGTHS)  # one more token of each prompt, in a batch
    token = [torch.randn(batch, H, D, device=device, dtype=dtype) for _ in range(3)]
    gates = [torch.randn(batch, H, device=device) for _ in range(2)]
    print(f"the next token of each: h {tuple(ops.mlstm_exp_step(*token, *gates, state=states).shape)}")


if __name__ == "__main__":
    main()
