"""What theory counts of the baselines: FLOPs and bytes of each, by its own algorithm."""

from __future__ import annotations

import pytest

from tflabench.baselines import fla_ops, fla_rwkv7, flash_attention, lightning, mamba, nxai
from tflabench.implementations import registry
from tflabench.problem import Problem
from tflabench.theory import linear_attention
from tflabench.theory.call_cost import call_cost

BY_NAME = {impl.name: impl for impl in registry.implementations()}
ADAPTERS = (flash_attention, fla_ops, fla_rwkv7, lightning, mamba, nxai)
BASELINES = [impl for adapter in ADAPTERS for impl in adapter.IMPLEMENTATIONS]
SIZE = Problem(batch=2, heads=4, seq_len=1024, d_qk=64, d_hv=128)


def test_simple_gla_counts_what_mlstm_sig_does_but_for_its_input_gate_and_pointwise_work():
    problem = SIZE.with_(chunk_size=fla_ops.CHUNK_SIZE)
    ours, theirs = call_cost(problem, "chunkwise", "sig"), linear_attention.cost(problem, decays=1, chunk_size=64)
    assert 0.9 * ours.flops < theirs.flops < ours.flops
    assert 0.9 * ours.bytes < theirs.bytes < ours.bytes


def test_forward_products_of_one_chunk():
    """L = T = 64, one head of 16 and 32: products by hand, 2 m n k each, the triangular ones half."""
    problem = Problem(batch=1, heads=1, seq_len=64, d_qk=16, d_hv=32)
    plain = 2 * 2 * 64 * 16 * 32 + 64 * 64 * (16 + 32)
    assert linear_attention.cost(problem, decays=0, chunk_size=64).flops == plain
    delta = 64 * 64 * 16 + 64**3 / 3 + 64 * 64 * (16 + 32) + 2 * 64 * 16 * 32
    assert linear_attention.cost(problem, decays=0, delta=True, chunk_size=64).flops == pytest.approx(plain + delta)
    trained = linear_attention.cost(problem.with_(pass_="fwbw"), decays=0, chunk_size=64).flops
    assert trained == plain + 2 * 64 * 16 * 32 * 5 + 64 * 64 * (3 * 16 + 2 * 32)
    # q, k, v, k, v read, o written in 2 bytes; C written and read in 4
    assert linear_attention.cost(problem, decays=0, chunk_size=64).bytes == 2 * 64 * (3 * 16 + 3 * 32) + 2 * 4 * 16 * 32


def test_states_on_chip_move_no_state_but_parts_of_what_their_blocks_add_up_to():
    """Simple GLA fused chunk at T = 64, one head, blocks of 64 x 64, in 2 bytes."""
    count = BY_NAME["fla_simple_gla_fused"].cost
    assert count
    alone = Problem(batch=1, heads=1, seq_len=64, d_qk=64, d_hv=64)
    assert count(alone).bytes == 64 * 2 * (4 * 64 + 1)  # q, k, v, o, g
    # q and k twice, v and dh twice, dq, dk, dv; g three times, its gradient written, read, written, read, summed
    assert count(alone.with_(pass_="fwbw")).bytes - count(alone).bytes == 64 * (2 * (11 * 64 + 2) + 4 * 5 + 2)
    wide = alone.with_(d_qk=128)  # two blocks: o in two parts of 4 bytes, read, their sum, that read
    assert count(wide).bytes == 64 * (2 * (2 * 128 + 2 * 64 + 1) + 4 * 6 * 64)


def test_lightning_attention_2_moves_no_state_but_slices_of_wide_heads_read_v_again():
    """One head of 64 steps, in 2 bytes."""
    count = BY_NAME["lightning_attention_2"].cost
    assert count
    alone = Problem(batch=1, heads=1, seq_len=64, d_qk=64, d_hv=64)
    assert count(alone).bytes == 64 * 2 * (4 * 64)  # q, k, v, o
    # Within blocks q, k, v, do -> dq, dk, dv; between them q, k, v, do, and dq, dk, dv read and written
    assert count(alone.with_(pass_="fwbw")).bytes - count(alone).bytes == 64 * 2 * (7 * 64 + 10 * 64)
    assert count(alone.with_(d_qk=128)).bytes == 64 * 2 * (2 * 128 + 2 * 64)
    assert count(alone.with_(d_qk=256)).bytes == 64 * 2 * (2 * 256 + 4 * 2 * 64)
    assert count(alone).flops == linear_attention.cost(alone, decays=0, chunk_size=64).flops


def test_gla_as_published_moves_no_state_forward_but_a_part_of_o_and_scores_for_each_block_of_channels():
    """One head of 64 steps with two blocks of channels, in 2 bytes, float32 where it is between kernels."""
    count = BY_NAME["gla_chunk_fuse"].cost
    assert count
    wide = Problem(batch=1, heads=1, seq_len=64, d_qk=128, d_hv=64)
    sums, weights = 128 * (2 + 4), 128 * (4 * 2 + 4)
    walk, scores = 128 * (2 * 2 + 4 / 16) + 64 * (2 + 2 * 4), 128 * (2 * 2 + 4) + 2 * 16 * 4
    combined = 16 * (2 * 4 + 4 + 4 + 2) + 16 * 2 + 2 * 64 * 2 + 64 * (2 * 4 + 4 + 2 + 4 + 4 + 4 + 2)
    assert count(wide).bytes == 64 * (sums + weights + walk + scores + combined)
    assert count(wide).flops == call_cost(wide.with_(chunk_size=16), "chunkwise", "gla").flops
    ours, published = (
        BY_NAME[name].count(wide.with_(pass_="fwbw")).bytes - BY_NAME[name].count(wide).bytes
        for name in ("tfla_gla_xl", "gla_chunk_fuse")
    )
    assert published == ours


def test_a_group_shares_the_work_on_its_keys():
    problem = SIZE.with_(chunk_size=256, d_qk=64, d_hv=64)
    alone, shared = (linear_attention.cost(problem, decays=1, chunk_size=256, group=group) for group in (1, 4))
    saved = problem.batch * 3 * problem.seq_len * 256 * 64
    assert alone.flops - shared.flops == saved
    assert shared.bytes < alone.bytes


@pytest.mark.parametrize("name", [impl.name for impl in BASELINES if impl.cost])
def test_counts_grow_with_the_problem(name):
    count = BY_NAME[name].cost
    assert count is not None
    small, long, trained = (count(SIZE.with_(**c)) for c in ({}, {"seq_len": 2048}, {"pass_": "fwbw"}))
    assert long.flops == pytest.approx(2 * small.flops)
    assert long.bytes == pytest.approx(2 * small.bytes)
    assert trained.flops > 2 * small.flops
    assert trained.bytes > 1.5 * small.bytes


def test_rows_are_modelled_by_the_implementations_own_count():
    from tflabench.bench.rows_of_run import modelled
    from tflabench.theory import hardware

    ceilings = hardware.ceilings_for("NVIDIA H100 80GB HBM3", "bfloat16")
    assert ceilings
    impl = BY_NAME["fla_kda"]
    assert impl.cost
    assert modelled(impl, SIZE, ceilings, None)["model_flops"] == impl.cost(SIZE).flops


def test_names_are_unique():
    names = [impl.name for impl in registry.implementations()]
    assert len(names) == len(set(names))
