"""Build the layer of Gated Linear Attention around the kernel, and sum numbers chunk by chunk with the kernel alone."""

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid, silu

from tflabench import ops


class GLA(nn.Module):
    """Gated Linear Attention with heads of (width / 2 / heads) / (width / heads).

    Args:
        width, heads: of the layer.
        rank: of the decays. From width to width / 2 in one step they would take width / 2 / rank times the weights.
        temperature: decays are sigmoid(...)^(1 / temperature), so that little is forgotten at first.
    """

    def __init__(self, width: int, heads: int, rank: int = 16, temperature: float = 16.0) -> None:
        super().__init__()
        self.sizes, self.temperature = [width // heads // n for n in (2, 2, 1)], temperature
        self.qkv, self.gate = nn.Linear(width, 2 * width, bias=False), nn.Linear(width, width)
        self.decays = nn.Sequential(nn.Linear(width, rank, bias=False), nn.Linear(rank, width // 2))
        self.norm, self.out = nn.LayerNorm(width // heads), nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the output for x, both (B, T, width)."""
        q, k, v = self.qkv(x).unflatten(2, (-1, sum(self.sizes))).split(self.sizes, dim=3)
        g = logsigmoid(self.decays(x).float()).view(q.shape) / self.temperature  # (B, T, heads, d_qk), at most 0
        o = ops.gla(q, k, v, g, layout="bthd")  # (B, T, heads, width / heads)
        return self.out(silu(self.gate(x)) * self.norm(o).flatten(2))


def summed(numbers: Tensor, state: ops.State | None = None) -> tuple[Tensor, ops.State]:
    """Return the sum up to each of numbers (T,), and the state behind them: q = k = 1, and nothing is forgotten."""
    v = numbers.view(1, 1, -1, 1)
    ones = torch.ones_like(v)
    sums, state = ops.gla(ones, ones, v, 0 * ones, initial_state=state, return_last_state=True)
    return sums.flatten(), state


if __name__ == "__main__":
    device = "cuda" if torch.cuda.is_available() else "cpu"
    layer = GLA(width=64, heads=2).to(device)
    y = layer(torch.randn(2, 100, 64, device=device))
    weights = [sum(p.numel() for p in part.parameters()) for part in (layer.decays, layer)]
    print(f"y {tuple(y.shape)}; {weights[0]} of {weights[1]} weights make decays")
    state = None
    for chunk in torch.arange(12.0, device=device).split(4):
        alone, _ = summed(chunk)
        sums, state = summed(chunk, state)
        print(f"{chunk.tolist()}: alone {alone.tolist()}, behind those before {sums.tolist()}")
