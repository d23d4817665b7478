"""What `tflabench claims` names as the command that would decide a claim makes what the claim needs."""

from __future__ import annotations

import shlex

import pytest
from synthetic import row

from tflabench.conclusions.claim import Claim, check
from tflabench.conclusions.claims import CLAIMS, KERNELS
from tflabench.rows.schema import Row
from tflabench.selection.axes import parse_overrides
from tflabench.selection.points import Point, comparisons, select_points
from tflabench.selection.presets import load_preset


def claim(start: str) -> Claim:
    (found,) = [claim for claim in CLAIMS if claim.says.startswith(start)]
    return found


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("one", [c for c in CLAIMS if c.command], ids=lambda one: one.says)
def test_the_command_named_makes_what_a_claim_needs(one, kernels):
    """In one comparison for the roles of a point, and for all chunk sizes."""
    words = shlex.split(check(one, kernels, []).command or "", comments=True)
    options = dict(zip(words[2::2], words[3::2], strict=True))
    given = [value for flag, value in zip(words[2::2], words[3::2], strict=True) if flag == "-a"]
    given += [f"pass={options['--pass']}"] if "--pass" in options else []
    points = select_points(
        load_preset(options["--preset"]), parse_overrides(given), options["--impl"].split(","), "cuda"
    )
    needs = [*one.needs.values()]
    found: dict[int | None, int] = {}
    for comparison in comparisons(points):
        made = [as_row(point) for point in comparison.points]
        roles = [{getattr(r, one.over) for r in made if need.fits(r, kernels)} for need in needs]
        for at in set.intersection(*roles):
            found[at] = found.get(at, 0) + 1
    assert len(found) >= one.at_least


def as_row(point: Point) -> Row:
    p = point.problem
    made = row(
        point.implementation.name, batch=p.batch, heads=p.heads, seq_len=p.seq_len, d_qk=p.d_qk, d_hv=p.d_hv,
        chunk_size=p.chunk_size, pass_=p.pass_, dtype=p.dtype, inputs=p.inputs,
    )  # fmt: skip
    return made.model_copy(update={"point": point.id})
