"""What `tflabench claims` names as the command that would decide a claim makes what the claim needs."""

from __future__ import annotations

import shlex

import pytest
from synthetic import row_of

from tflabench.conclusions.claim import Claim, check
from tflabench.conclusions.claims import CLAIMS, KERNELS
from tflabench.selection.axes import parse_overrides
from tflabench.selection.points import comparisons, select_points
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
        made = [row_of(point) for point in comparison.points]
        roles = [{getattr(r, one.over) for r in made if need.fits(r, kernels)} for need in needs]
        for at in set.intersection(*roles):
            found[at] = found.get(at, 0) + 1
    assert len(found) >= one.at_least
