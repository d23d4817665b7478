"""Axes, presets and plans."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tflabench.bench.request import Request
from tflabench.implementations import registry
from tflabench.problem import InputError, Problem
from tflabench.selection import presets
from tflabench.selection.axes import overlay, parse_overrides, parse_values, resolve
from tflabench.selection.points import Point, comparisons, select_points


@pytest.mark.parametrize(
    ("axis", "text", "values"),
    [
        ("seq_len", "512, 1024,512", (512, 1024)),
        ("seq_len", "512:65536:x2", (512, 1024, 2048, 4096, 8192, 16384, 32768, 65536)),
        ("d_hv", "64:256:+64", (64, 128, 192, 256)),
        ("batch", "1,4:8:+2", (1, 4, 6, 8)),
        ("chunk_size", "auto,64", (None, 64)),
        ("pass", "both", ("fw", "fwbw")),
    ],
)
def test_values(axis, text, values):
    assert parse_values(axis, text) == values


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("seqlen=512", "unknown axis 'seqlen'; did you mean seq_len?"),
        ("seq_len", "must be AXIS=VALUES"),
        ("seq_len=abc", "'abc': it must be an integer"),
        ("seq_len=512:1024:2", "START:STOP:xFACTOR"),
        ("seq_len=0:1024:x2", "START:STOP:xFACTOR"),
        ("seq_len=1024:512:x2", "empty range '1024:512:x2'"),
        ("seq_len=1:1000000000:+1", "at most 1000 values"),
        ("d_qk=0", "d_qk is 0: it must be at least 1"),
        ("pass=backward", "pass is 'backward': it must be one of fw, fwbw, decode, both"),
    ],
)
def test_bad_axes(option, message):
    with pytest.raises(InputError) as error:
        parse_overrides([option])
    assert message in str(error.value)


def test_derived_sizes():
    sizes = {"seq_len": 512, "tokens": 4096, "embedding": 1024, "head_dim": 128, "d_qk": 64, "pass": "fwbw"}
    assert resolve(sizes) == Problem(8, 8, 512, d_qk=64, d_hv=128, pass_="fwbw")


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"seq_len": 512, "head_dim": 96, "embedding": 1024}, "embedding is 1024: it must be a multiple of d_hv"),
        ({"seq_len": 512, "head_dim": 64, "tokens": 1000}, "tokens is 1000: it must be a multiple of seq_len"),
        ({"head_dim": 64}, "seq_len is not set"),
    ],
)
def test_sizes_that_do_not_fit(sizes, message):
    with pytest.raises(InputError) as error:
        resolve(sizes)
    assert message in str(error.value)


def test_a_later_layer_replaces_what_it_contradicts():
    base = {"tokens": (65536,), "embedding": (4096,), "d_qk": (128,), "d_hv": (256,)}
    assert overlay(base, {"batch": (2,), "head_dim": (64,)}) == {"embedding": (4096,), "batch": (2,), "head_dim": (64,)}
    assert overlay({"head_dim": (64,)}, {"d_qk": (32,)}) == {"head_dim": (64,), "d_qk": (32,)}
    with pytest.raises(InputError, match="batch and tokens"):
        overlay(base, {"batch": (2,), "tokens": (4096,)})


@pytest.mark.parametrize("name", presets.preset_names())
@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_every_preset_plans_each_point_once(name, device):
    points = select_points(
        presets.load_preset(name), {}, ["step_sig"] if name == "decode" else ["reference_sig", "sdpa"], device
    )
    assert len({point.id for point in points}) == len(points) > 0
    assert all(point.problem.chunk_size is None for point in points if not point.implementation.chunked)


@pytest.mark.parametrize("name", presets.preset_names())
def test_no_preset_asks_an_implementation_for_the_wrong_pass(name):
    """A point may be refused for its size or a missing package, but sequences and single steps do not mix."""
    points = select_points(presets.load_preset(name), {}, None, "cuda")
    assert {point.implementation.name.startswith("step_") for point in points} == {name == "decode"}


@pytest.mark.parametrize(
    ("implementation", "configuration", "sizes"),  # heads of q and k, heads of v, d_qk, d_hv
    [
        (
            "hopper_gated_delta_net",
            "qwen3_next.configuration_qwen3_next.Qwen3NextConfig",
            "linear_num_key_heads linear_num_value_heads linear_key_head_dim linear_value_head_dim",
        ),
        (
            "hopper_gated_delta_net",
            "olmo_hybrid.configuration_olmo_hybrid.OlmoHybridConfig",
            "linear_num_key_heads linear_num_value_heads linear_key_head_dim linear_value_head_dim",
        ),
        (
            "hopper_mamba2",
            "nemotron_h.configuration_nemotron_h.NemotronHConfig",
            "mamba_num_heads mamba_num_heads ssm_state_size mamba_head_dim",
        ),
        ("hopper_exp", "xlstm.configuration_xlstm.xLSTMConfig", "num_heads num_heads qk_head_dim v_head_dim"),
    ],
)
def test_models_have_the_sizes_of_their_configurations(implementation, configuration, sizes):
    module, name = configuration.rsplit(".", 1)
    config = getattr(pytest.importorskip(f"transformers.models.{module}"), name)()
    points = select_points(presets.load_preset("models"), {}, [implementation], "cuda")
    measured = {(p.heads_qk or p.heads, p.heads, p.d_qk, p.d_hv) for p in (point.problem for point in points)}
    assert tuple(getattr(config, name) for name in sizes.split()) in measured


def test_an_automatic_chunk_size_that_is_given_too_is_measured_once():
    """Of each operation in plain PyTorch what it takes by itself is what its plan says."""
    axes = {"chunk_size": (None, 32, 64), "seq_len": (32, 256)}
    points = select_points(presets.load_preset("quick"), axes, ["reference_sig", "reference_gla", "sdpa"], "cpu")
    sizes = {(p.implementation.name, p.problem.seq_len, p.problem.chunk_size) for p in points}
    of_sig = {("reference_sig", 32, None), ("reference_sig", 32, 64)}
    assert {size for size in sizes if size[:2] == ("reference_sig", 32)} == of_sig
    assert {size[2] for size in sizes if size[:2] == ("reference_sig", 256)} == {None, 32}
    assert {size[2] for size in sizes if size[0] == "sdpa"} == {None}


def test_paper_fig4_has_the_papers_settings():
    points = select_points(presets.load_preset("paper-fig4"), {}, ["sdpa"], "cuda")
    problems = {point.problem for point in points}
    assert Problem(128, 32, 512, 128, 128, pass_="fw", gates="usual") in problems
    assert Problem(1, 32, 65536, 128, 128, pass_="fwbw", gates="usual") in problems
    assert len(problems) == 8 * 2


def test_points_of_one_size_stand_together_within_a_stage():
    points = select_points(presets.load_preset("paper-fig4"), {}, None, "cuda")
    sizes = [(p.seq_len, p.d_hv, p.d_qk, p.pass_) for p in (point.problem for point in points)]
    assert len(set(sizes)) == 1 + sum(left != right for left, right in pairwise(sizes))


def test_stages_follow_one_another_and_a_point_belongs_to_the_first_that_asks_for_it():
    group = presets.Group({"seq_len": (64, 32), "head_dim": (16,)}, impl="sdpa", stage="first")
    later = presets.Group({"seq_len": (16, 32), "head_dim": (16,)}, impl="sdpa", stage="second")
    preset = presets.Preset("two", "two stages", (group, later), {})
    assert [point.problem.seq_len for point in select_points(preset, {}, None, "cpu")] == [32, 64, 16]


def points_of(*sizes: tuple[str, int, int]) -> list[Point]:
    """(implementation, heads, d_hv) at one batch, length and pass."""
    return [Point(registry.get(name), Problem(2, heads, 512, 64, d_hv)) for name, heads, d_hv in sizes]


def test_a_comparison_holds_all_heads_of_one_embedding_ours_first():
    points = points_of(("sdpa_cudnn", 4, 128), ("hopper_sig", 2, 256), ("mamba2", 8, 64), ("tfla_sig_xl", 2, 256))
    (one,) = comparisons(points)
    assert [p.implementation.name for p in one.points] == ["tfla_sig_xl", "hopper_sig", "sdpa_cudnn", "mamba2"]
    assert one.title == "fw B=2 T=512 embedding 512 bfloat16"


def test_each_head_size_is_a_comparison_where_an_implementation_stands_at_several():
    points = points_of(("sdpa_cudnn", 4, 128), ("hopper_sig", 2, 256), ("hopper_sig", 4, 128))
    assert [[p.problem.d_hv for p in one.points] for one in comparisons(points)] == [[128, 128], [256]]


@pytest.mark.parametrize(
    "other",
    [{"batch": 4}, {"seq_len": 256}, {"d_hv": 128}, {"dtype": "float32"}, {"pass_": "fwbw"}, {"inputs": "standard"}],
)
def test_another_size_dtype_pass_or_inputs_is_another_comparison(other):
    one = Problem(2, 2, 512, 64, 64)
    points = [Point(registry.get("sdpa"), one), Point(registry.get("hopper_sig"), one.with_(**other))]
    assert len(comparisons(points)) == 2
    assert len(comparisons([points[0], Point(registry.get("hopper_sig"), one.with_(chunk_size=128))])) == 1


def test_each_strength_of_gates_is_a_comparison_where_an_implementation_stands_at_several():
    one = Problem(2, 2, 512, 64, 64)
    usual = [Point(registry.get(name), one) for name in ("hopper_sig", "tfla_gla_xl", "sdpa")]
    assert [point.problem.gates for point in usual] == ["usual", "weak", "usual"]
    assert len(comparisons(usual)) == 1
    medium = [Point(registry.get(name), one.with_(gates="medium")) for name in ("hopper_sig", "tfla_gla_xl")]
    assert [[p.problem.gates for p in one.points] for one in comparisons([*usual, *medium])] == [
        ["usual", "usual"], ["weak"], ["medium", "medium"],
    ]  # fmt: skip


def test_each_model_of_the_models_preset_is_a_comparison():
    preset = presets.load_preset("models")
    models = [group.comparison for group in preset.groups if group.device == "cuda"]
    together = comparisons(select_points(preset, {}, None, "cuda"))
    assert sorted(each.points[0].comparison for each in together) == sorted(2 * models)
    assert all(len({point.comparison for point in each.points}) == 1 for each in together)


def test_several_sizes_of_heads_part_no_gates():
    names = ("hopper_sig", "tfla_gla_xl")
    sizes = [Problem(4, 4096 // d, 8192, d, d, gates=gates) for d in (64, 128) for gates in ("usual", "weak")]
    points = [
        Point(registry.get(name), size) for size in sizes for name in names if (size.gates == "weak") == ("gla" in name)
    ]
    assert [[p.problem.d_hv for p in one.points] for one in comparisons(points)] == [[64, 64], [128, 128]]


def test_a_point_is_named_as_before_where_its_gates_are_those_of_before():
    one = Problem(2, 2, 512, 64, 64)
    named = [Point(registry.get("hopper_sig"), one.with_(**given)).id for given in (
        {}, {"gates": "usual"}, {"inputs": "standard"}, {"gates": "weak"}
    )]  # fmt: skip
    assert [id_.split("/bfloat16/")[1] for id_ in named] == ["normal0", "normal0", "standard0", "normal0/weak"]
    assert Point(registry.get("tfla_gla_xl"), one).id.endswith("/normal0/weak")


def test_sizes_come_in_the_order_in_which_they_are_given():
    def order(preset: str, *options: str) -> list[Problem]:
        points = select_points(presets.load_preset(preset), parse_overrides(options), ["reference_sig", "sdpa"], "cpu")
        names = [point.implementation.name for point in points]
        assert names == ["reference_sig", "sdpa"] * (len(names) // 2)  # those of one size stand together
        return [point.problem for point in points[::2]]

    sizes = order("headdim", "seq_len=128,512,64", "pass=fwbw,fw", "head_dim=64,16", "embedding=128,64")
    assert [p.seq_len for p in sizes] == 8 * [128] + 8 * [512] + 8 * [64]
    assert [(p.d_hv, p.heads, p.pass_) for p in sizes[:8]] == [
        (head_dim, embedding // head_dim, pass_)
        for head_dim in (64, 16)
        for embedding in (128, 64)
        for pass_ in ("fwbw", "fw")
    ]
    sizes = order("headdim", "seq_len=64", "head_dim=16", "tokens=64,256,128", "pass=fw")
    assert [p.batch for p in sizes] == [1, 4, 2]
    sizes = order("headdim", "pass=fw", "embedding=512")
    assert [p.d_hv for p in sizes] == [16, 32, 64, 128, 256]


def test_which_implementations_run():
    def names(*patterns: str) -> set[str]:
        points = select_points(presets.load_preset("quick"), {}, patterns or None, "cpu")
        return {point.implementation.name for point in points}

    assert names() == {"reference_exp", "reference_sig", "sdpa"}
    assert names("reference*") == {"reference_exp", "reference_sig"}  # the preset leaves the slow forms out
    assert names("reference_parallel_exp") == {"reference_parallel_exp"}  # unless nothing else is asked for
    assert names("*_recurrent_*", "sdpa") == {"reference_recurrent_exp", "reference_recurrent_sig", "sdpa"}


def test_unknown_names_suggest_the_nearest():
    with pytest.raises(InputError, match="unknown preset 'paper-fig'; did you mean paper-fig"):
        presets.load_preset("paper-fig")
    with pytest.raises(InputError, match="no implementation matches 'reference_sgi'; did you mean reference_sig"):
        registry.select("reference_sgi")
    with pytest.raises(InputError, match=r"known: tfla_exp_limit, .*, and \d+ more of `tflabench list`$"):
        registry.select("quux")


PRESET = """
title = "Mine"
protocol = { cpu = "short" }
axes = { pass = "fw", heads = 2 }
[[group]]
impl = "reference_sig,sdpa"
head_dim = "16:32:x2"
seq_len = 64
"""


def test_a_preset_is_a_file_too(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(PRESET)
    preset = presets.load_preset(str(path))
    assert (preset.name, preset.title, preset.protocol) == ("mine", "Mine", {"cpu": "short"})
    points = select_points(preset, {}, None, "cpu")
    assert [(p.implementation.name, p.problem.d_hv) for p in points] == [
        ("reference_sig", 16),
        ("sdpa", 16),
        ("reference_sig", 32),
        ("sdpa", 32),
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (('title = "Mine"', ""), "it has no title"),
        (("[[group]]", "[[groups]]"), "it has an unknown field 'groups'; did you mean group"),
        (('title = "Mine"', 'titel = "x"\ntitle = "Mine"'), "it has an unknown field 'titel'; did you mean title"),
        (("seq_len = 64", "seq_len = 0"), "seq_len is 0: it must be at least 1"),
        (("seq_len = 64", "seq_len = 64\nfamily = 'mlstm'"), "group 1 has family = 'mlstm': "),
        (('axes = { pass = "fw", heads = 2 }', 'axes = "fw"'), "it has axes = 'fw': "),
        (
            ("seq_len = 64", "seq_len = 64\ndevice = 'gpu'"),
            "device = 'gpu': Input should be 'cuda' or 'cpu'",
        ),
    ],
)
def test_a_file_that_is_no_preset(tmp_path, change, message):
    path = tmp_path / "mine.toml"
    path.write_text(PRESET.replace(*change))
    with pytest.raises(InputError) as error:
        presets.load_preset(str(path))
    assert str(error.value).startswith(f"preset {path}: ")
    assert message in str(error.value)


def test_a_preset_that_cannot_be_read_or_followed(tmp_path):
    with pytest.raises(InputError, match=r"preset nowhere.toml cannot be read \(No such file or directory\)"):
        presets.load_preset("nowhere.toml")
    path = tmp_path / "mine.toml"
    path.write_text(PRESET.replace('"short"', '"shorter"'))
    with pytest.raises(InputError, match="has protocol 'shorter'; did you mean short"):
        Request(str(path)).select("cpu")
    assert Request(str(path)).select("cuda").protocol.name == "standard"


def test_what_is_no_preset_and_what_names_nothing_is_said(tmp_path):
    path = tmp_path / "mine.toml"
    for content, message in ((b"\xff\xfe", "is no text in UTF-8: name a TOML"), (b"[[group", "is no TOML: ")):
        path.write_bytes(content)
        with pytest.raises(InputError, match=message):
            presets.load_preset(str(path))
    path.write_text('title = "Mine"\n[[group]]\nimpl = "reference_sgi"\n')
    with pytest.raises(InputError, match="no implementation matches 'reference_sgi'; did you mean reference_sig"):
        select_points(presets.load_preset(str(path)), {}, None, "cpu")


def test_a_csv_file_has_a_shape_a_line(tmp_path):
    path = tmp_path / "shapes.csv"
    path.write_text("seq_len, d_qk, d_hv, heads, dtype\n64, 16, 32, 2, float32\n\n128, 32, 32, 1,\n")
    preset = presets.load_preset(str(path))
    sizes = [p.problem for p in select_points(preset, {}, ["reference_sig"], "cpu")]
    assert [(p.seq_len, p.d_qk, p.d_hv, p.heads, p.dtype) for p in sizes] == [
        (64, 16, 32, 2, "float32"),
        (128, 32, 32, 1, Problem(1, 1, 1, 1, 1).dtype),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("seq_len,d_qk,d_hv\n64,16,16\n64,16\n", "line 3: it has not as many cells as the first line"),
        ("seq_len,d_qk,d_hv\n64,16,16,8\n", "line 2: it has not as many cells as the first line"),
        ("seq_len,head_dim\n64,16\n64,0\n", "line 3: head_dim is 0: it must be at least 1"),
        ("seqlen,head_dim\n64,16\n", "line 1: unknown axis 'seqlen'; did you mean seq_len"),
        ("seq_len\n64\n", "line 2: d_qk is not set"),
        ("seq_len,head_dim\n", "it has no shapes"),
    ],
)
def test_a_csv_file_that_has_no_shapes(tmp_path, text, message):
    path = tmp_path / "shapes.csv"
    path.write_text(text)
    with pytest.raises(InputError) as error:
        presets.load_preset(str(path))
    assert str(error.value).startswith(f"preset {path}: {message}")
