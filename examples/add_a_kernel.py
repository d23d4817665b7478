"""Measure a kernel of your own and a bundled one: this file is the plugin, and the sweep that runs it.

The same from a shell: tflabench sweep --plugin examples/add_a_kernel.py --impl 'step_by_step,reference_sig'
"""

import tempfile

import torch

import tflabench
from tflabench.plugin import mlstm_kernel


def step_by_step(q, k, v, i, f):  # q, k (B, H, T, d_qk), v (B, H, T, d_hv), i and f (B, H, T)
    """Return h (B, H, T, d_hv) of an mLSTM with a sigmoid input gate, a step at a time."""
    keep, write, state, h = f.sigmoid(), i.sigmoid(), 0, []
    for t in range(q.shape[2]):
        written = write[:, :, t, None, None] * k[:, :, t, :, None] * v[:, :, t, None]
        state = keep[:, :, t, None, None] * state + written
        h.append((q[:, :, t, None] @ state).squeeze(2) * q.shape[-1] ** -0.5)
    return torch.stack(h, dim=2)


IMPLEMENTATIONS = (mlstm_kernel("step_by_step", step_by_step, gate="sig"),)


def main() -> None:
    """Time this kernel and a bundled one, and print the rows."""
    with tempfile.TemporaryDirectory() as out:
        df = tflabench.sweep(
            impl="step_by_step,reference_sig", plugin=__file__, out=out,
            batch=2, heads=2, head_dim=32, seq_len=64, chunk_size=None, dtype="float32", pass_="fw",
        )  # fmt: skip
    print(df[["implementation", "seq_len", "status", "ms_median", "rel_error"]].to_string(index=False))


if __name__ == "__main__":
    main()
