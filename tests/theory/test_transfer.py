"""The transfer behaviour: the gains against the reference implementation, and what the paper says of the figures."""

from __future__ import annotations

import json
import math
from functools import partial

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from tflabench.cli.main import app
from tflabench.figures.gain_maps import heat_maps
from tflabench.figures.model import Curve
from tflabench.kernels.scalar import reference
from tflabench.kernels.types import MLSTM_EXP, MLSTM_SIG
from tflabench.problem import InputError
from tflabench.theory import transfer

GATES = {"exp": MLSTM_EXP, "sig": MLSTM_SIG}
DEFAULTS = transfer.FIGURES["3"]
SMALL = transfer.Experiment(
    input_gates=(-11.0, -6.0, 0.0, 5.0), forget_gates=(-4.0, 2.0, 9.0), seq_len=48, d_qk=16, d_hv=24
)


def expected(experiment: transfer.Experiment, gate: str, i: float, f: float, eps: float) -> tuple[float, float]:
    """Both gains by the definition, through the reference implementation."""
    q, k, v = (torch.from_numpy(x)[None, None] for x in experiment.inputs())
    forget, write = (torch.full((1, 1, experiment.seq_len), value, dtype=torch.float64) for value in (f, i))
    h = reference.parallel(q, k, v, forget, write, gate=GATES[gate])[0]
    normed = torch.nn.functional.rms_norm(h, h.shape[-1:], eps=eps)
    if experiment.norm == "layer":
        normed = torch.nn.functional.layer_norm(h, h.shape[-1:], eps=eps)
    peaks = [x.abs().amax(-1) for x in (h, normed, v)]
    return float((peaks[0] / peaks[2]).mean()), float((peaks[1] / peaks[2]).mean())


@pytest.mark.parametrize(("norm", "cap"), [("rms", None), ("layer", 6.0)])
@pytest.mark.parametrize("row", DEFAULTS, ids=lambda row: row[0])
def test_gains_are_those_of_the_reference_implementation(row, norm, cap):
    experiment = transfer.Experiment(**{**vars(SMALL), "norm": norm, "soft_cap": cap})
    (found,) = transfer.gains(experiment, [row], [1e-6, 1e-2])
    for y, i in enumerate(experiment.input_gates):
        for x, f in enumerate(experiment.forget_gates):
            for eps, after in found.after.items():
                capped_i, capped_f = (x if cap is None else cap * math.tanh(x / cap) for x in (i, f))
                want = expected(experiment, row[0], capped_i, capped_f, eps)
                np.testing.assert_allclose((found.before[y, x], after[y, x]), want, rtol=1e-9)


@pytest.fixture(scope="module")
def paper() -> dict[str, list[transfer.Gains]]:
    """The paper's experiment on a coarse grid."""
    experiment = transfer.Experiment(tuple(np.arange(-12.0, 8.5)), tuple(np.arange(-5.0, 12.5, 2.0)))
    return {name: transfer.gains(experiment, rows) for name, rows in transfer.FIGURES.items()}


def test_after_the_norm_exp_and_sig_behave_the_same(paper):
    exp, sig = paper["3"]
    for eps, most in ((1e-8, 0.02), (1e-6, 0.02), (1e-2, 0.1)):
        assert abs(exp.after[eps] - sig.after[eps]).max() < most
    assert abs(np.log(exp.before / sig.before)).max() > 0.5, "before the norm they differ"


def test_the_transition_lies_at_negative_input_gates_and_moves_up_with_eps(paper):
    i = tuple(np.arange(-12.0, 8.5).tolist())
    for row in paper["3"]:
        for column in range(row.before.shape[1]):
            low, middle, high = (transfer.half_gain(i, row.after[eps][:, column]) for eps in (1e-8, 1e-6, 1e-2))
            assert middle is not None
            assert high is not None
            assert -11 < middle < -6, "around -8 (App. E)"
            assert (low or -12) < middle < high


def test_only_bounded_normalizers_let_the_input_gate_decide(paper):
    """Fig. 6: only the default; Fig. 7: none and a bound of 1 agree, the others behave differently."""
    default, bounded, absolute = (row.after[1e-6] for row in paper["6"])
    assert np.ptp(default, axis=0).min() > 0.5
    assert max(np.ptp(bounded, axis=0).max(), np.ptp(absolute, axis=0).max()) < 1e-3
    none, bounded, absolute, stabilized = (row.after[1e-6] for row in paper["7"])
    assert abs(none - bounded).max() < 0.02
    assert np.ptp(absolute, axis=0).max() < 1e-3
    assert abs(none - stabilized).max() > 0.5


def test_half_gain_is_interpolated_and_none_without_a_transition():
    assert transfer.half_gain((0.0, 1.0, 2.0, 3.0), np.array([0.0, 0.25, 0.75, 1.0])) == pytest.approx(1.5)
    assert transfer.half_gain((0.0, 1.0), np.array([1.0, 1.1])) is None


def invoke(*words: str):
    return CliRunner().invoke(app, ["transfer", *words])


@pytest.fixture
def coarse(monkeypatch):
    """The command on a coarse grid of the gates."""
    gates = (tuple(np.arange(-12.0, 9.0)), tuple(np.arange(-4.5, 13.0)))
    monkeypatch.setattr(transfer, "Experiment", partial(transfer.Experiment, *gates))


def test_the_command_draws_the_figures_of_the_paper(tmp_path, coarse):
    done = invoke("--out", str(tmp_path), "--json")
    assert done.exit_code == 0, done.output
    result = json.loads(done.stdout)
    assert {path.name for path in tmp_path.iterdir()} == {
        f"transfer-fig{n}.{end}" for n in (3, 6, 7) for end in ("png", "txt", "csv")
    }
    assert len(result["rows"]) == 2 + 3 * 3 + 4 * 3
    rows = {(row["figure"], row["gate"]): row for row in result["rows"] if row["figure"] == "3"}
    assert rows["3", "exp"]["half_gain_input_gate"] == pytest.approx(-9.3, abs=0.2)
    table = np.genfromtxt(tmp_path / "transfer-fig3.csv", delimiter=",", skip_header=1)
    assert table.shape == (21 * 18, 2 + 2 * 2)


def test_the_command_says_the_gain_at_the_bias_of_the_paper_under_its_cap(tmp_path, coarse):
    done = invoke("--soft-cap=15", "--figure=3", "--eps=1e-6,1e-5", f"--out={tmp_path}", "--json")
    gains = {(row["gate"], row["eps"]): row["gain_at_default_bias"] for row in json.loads(done.stdout)["rows"]}
    for gate in GATES:
        assert (gains[gate, 1e-6], gains[gate, 1e-5]) == pytest.approx((0.69, 0.29), abs=0.01)


def test_lines_show_half_the_largest_gain_for_every_eps_where_there_is_one(paper):
    experiment = transfer.Experiment(tuple(np.arange(-12.0, 8.5)), tuple(np.arange(-5.0, 12.5, 2.0)))
    figure = heat_maps("6", experiment, paper["6"])
    lines = [[item for item in panel.items if isinstance(item, Curve)] for panel in figure.panels[1::2]]
    assert [len(own) for own in lines] == [3, 0, 0], "only the default normaliser has a transition"
    keys = {key.ink.dash: float(key.label.removeprefix("eps = ")) for key in figure.keys}
    for line in lines[0]:
        gain = paper["6"][0].after[keys[line.ink.dash]]
        found = [transfer.half_gain(experiment.input_gates, column) for column in gain.T]
        np.testing.assert_array_equal(line.y, [np.nan if value is None else value for value in found])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--figure", "5"], "figure is '5': it must be one of 3, 6, 7"),
        (["--eps", "-1"], "eps is -1.0: it must lie between 0 and 1"),
        (["--eps", "small"], "--eps is 'small': it must be numbers such as 1e-6,1e-8"),
        (["--soft-cap", "0"], "--soft-cap is 0: it must be more than 0"),
        (["--seq-len", "100000"], "--seq-len is 100000: it must lie between 1 and 8192"),
        (["--out", "/proc/none"], "cannot be written"),
    ],
)
def test_bad_input_is_one_sentence(words, message, coarse):
    done = invoke("--seq-len", "8", *words)
    assert done.exit_code == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def test_an_eps_of_zero_is_no_error():
    (row,) = transfer.gains(SMALL, [DEFAULTS[1]], [0.0])
    assert np.isfinite(row.after[0.0]).all()


def test_lengths_below_one_are_refused():
    with pytest.raises(InputError, match="d_hv is -1"):
        transfer.Experiment((0.0,), (0.0,), d_hv=-1)
