"""Build the mLSTM layer of xLSTM 7B around the kernel: projections, gates, a norm of each head. Train it a little."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from tflabench import ops


class MLSTM(nn.Module):
    """An mLSTM with heads of (width / 2 / heads) / (width / heads). Defaults are those of the TFLA paper.

    Args:
        width, heads: of the layer.
        operation: `ops.mlstm_exp`, `ops.mlstm_sig`, or what takes their arguments.
        input_bias: of the input gates. At -10 hardly anything is written at first.
        cap: c of gates c tanh(x / c), which lie within -c and c; None leaves them as they are.
        eps: of the norm.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        operation: Callable[..., Tensor] = ops.mlstm_exp,
        input_bias: float = -10.0,
        cap: float | None = 15.0,
        eps: float = 1e-6,
    ) -> None:
        super().__init__()
        self.operation, self.cap = operation, cap
        self.sizes = [width // heads // n for n in (2, 2, 1)]
        self.qkv, self.gate = nn.Linear(width, 2 * width, bias=False), nn.Linear(width, width, bias=False)
        self.input_gate, self.forget_gate = nn.Linear(width, heads), nn.Linear(width, heads)
        self.out = nn.Linear(width, width, bias=False)
        self.norm = nn.LayerNorm(width // heads, eps, bias=False)
        nn.init.zeros_(self.input_gate.weight)  # so that the biases decide at first
        nn.init.zeros_(self.forget_gate.weight)
        nn.init.constant_(self.input_gate.bias, input_bias)
        self.forget_gate.bias.data = torch.linspace(3, 6, heads)  # hardly anything is forgotten

    def forward(self, x: Tensor) -> Tensor:
        """Return the output for x, both (B, T, width)."""
        q, k, v = self.qkv(x).unflatten(2, (-1, sum(self.sizes))).split(self.sizes, dim=3)
        i, f = (self.capped(gate(x).float()) for gate in (self.input_gate, self.forget_gate))  # (B, T, heads)
        h = self.operation(q, k, v, i, f, layout="bthd")  # (B, T, heads, width / heads)
        return self.out(torch.sigmoid(self.gate(x)) * self.norm(h).flatten(2))

    def capped(self, x: Tensor) -> Tensor:
        """Return pre-activations of gates under the soft cap."""
        return self.cap * torch.tanh(x / self.cap) if self.cap else x


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
