"""Build the mLSTM layer of xLSTM 7B around the kernel: projections, gates, a norm of each head. Train it a little."""

import torch
from torch import Tensor, nn

from tflabench import ops


class MLSTM(nn.Module):
    """An mLSTM with heads of (width / 2 / heads) / (width / heads)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.sizes = [width // heads // n for n in (2, 2, 1)]
        self.qkv, self.gate = nn.Linear(width, 2 * width, bias=False), nn.Linear(width, width, bias=False)
        self.i_f, self.out = nn.Linear(width, 2 * heads), nn.Linear(width, width, bias=False)
        self.norm = nn.LayerNorm(width // heads, bias=False)
        # at first hardly anything is written, and hardly anything forgotten
        self.i_f.bias.data = torch.cat([torch.full((heads,), -10.0), torch.linspace(3, 6, heads)])

    def forward(self, x: Tensor) -> Tensor:
        """Return the output for x, both (B, T, width)."""
        q, k, v = self.qkv(x).unflatten(2, (-1, sum(self.sizes))).split(self.sizes, dim=3)
        i, f = (15 * torch.tanh(self.i_f(x) / 15)).float().chunk(2, dim=2)  # (B, T, heads), kept within 15
        h = ops.mlstm_exp(q, k, v, i, f, layout="bthd")  # (B, T, heads, width / heads)
        return self.out(torch.sigmoid(self.gate(x)) * self.norm(h).flatten(2))


if __name__ == "__main__":
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = nn.Sequential(nn.Embedding(32, 64), MLSTM(64, heads=2), nn.Linear(64, 32)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    tokens = torch.randint(32, (8, 49), device=device)
    for step in range(30):
        loss = nn.functional.cross_entropy(model(tokens[:, :-1]).mT, tokens[:, 1:])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step}: loss {loss.item():.2f}")
