"""Algorithm 1 of the paper, ported: off as printed, right with the lines of docs/where-the-paper-errs.md."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import logsigmoid

from tflabench import ops


def algorithm_1(q, k, v, i, f, chunk_size: int, as_printed: bool):
    """h of one head of mLSTMexp, in the paper's names; lines 34 and 35 as printed or as they must be."""
    C, n, m = q.new_zeros(q.shape[1], v.shape[1]), q.new_zeros(q.shape[1]), q.new_tensor(-torch.inf)
    outputs = []
    for Q, K, V, log_i, log_f in zip(*(x.split(chunk_size) for x in (q, k, v, i, logsigmoid(f))), strict=True):
        b = log_f.cumsum(0)
        D = (b[:, None] - b + log_i).masked_fill(torch.ones(len(b), len(b)).triu(1).bool(), -torch.inf)
        m_new = D.amax(1)
        m_combine = torch.maximum(b + m, m_new)
        S = Q @ K.T / Q.shape[1] ** 0.5 * (D - m_new[:, None]).exp()
        Q_bar = Q / Q.shape[1] ** 0.5 * (b + m - m_combine).exp()[:, None]
        weight = (m_new - m_combine).exp()
        parts = ((S @ V, Q_bar @ C, weight[:, None]), (S.sum(1), Q_bar @ n, weight))
        H, N = (a + w * c if as_printed else w * a + c for a, c, w in parts)
        outputs.append(H / torch.maximum(N.abs(), (-m_combine).exp())[:, None])
        a = b[-1] - b + log_i
        m_next = torch.maximum(b[-1] + m, a.max())
        K_bar, g = K * (a - m_next).exp()[:, None], (b[-1] + m - m_next).exp()
        C, n, m = g * C + K_bar.T @ V, g * n + K_bar.sum(0), m_next
    return torch.cat(outputs)


@pytest.mark.parametrize(("d_qk", "d_hv", "T", "L"), [(64, 128, 512, 64), (64, 128, 1024, 128), (128, 256, 1024, 64)])
def test_lines_34_and_35_as_printed_are_8_to_40_percent_off(d_qk, d_hv, T, L):
    torch.manual_seed(0)
    q, k, v = (torch.randn(T, d, dtype=torch.float64) for d in (d_qk, d_qk, d_hv))
    i, f = torch.randn(T, dtype=torch.float64), torch.randn(T, dtype=torch.float64) + 3
    right = ops.mlstm_exp(*(x[None, None] for x in (q, k, v, i, f)), implementation="reference")[0, 0]
    mended, printed = (algorithm_1(q, k, v, i, f, L, as_printed) for as_printed in (False, True))
    assert (mended - right).norm() < 1e-12 * right.norm()
    assert 0.08 < (printed - right).norm() / right.norm() < 0.4
