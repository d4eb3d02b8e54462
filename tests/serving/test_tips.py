"""The tips of an arm, from the tracking store to a file that serves and simulates."""

from pathlib import Path

import pytest

from tests.conftest import Cli
from tests.promotion.campaign import Campaign
from tipbench.policies.serving.tips import read_tips
from tipbench.tracking import Tracking


@pytest.fixture
def campaign(tracking: Tracking, tmp_path: Path) -> Campaign:
    """Two arms, all judged; nobody is champion."""
    (tmp_path / "home").mkdir(exist_ok=True)
    made = Campaign(tracking, tmp_path / "home", {"good": 12.0, "poor": 5.0}).collect()
    made.judge()
    return made


def test_tips_come_with_their_judged_quality_and_are_the_champions_unless_told(
    cli: Cli, campaign: Campaign, tmp_path: Path
) -> None:
    out = tmp_path / "tips.jsonl"
    where = ("--experiment", campaign.experiment, "--out", str(out))
    said = cli.ok("policies", "tips", "--arm", "poor+v1", *where)
    poor = read_tips(out)
    judged = [tip.quality for tip in poor if tip.quality is not None]
    assert f"{len(poor)} tips of poor+v1, {len(judged)} of them judged" in said.out
    assert {tip.kind for tip in poor} == {"morning", "evening"}
    refused = cli("policies", "tips", "--arm", "other+v1", *where)
    assert (refused.code, "Available: good+v1, poor+v1" in refused.err) == (2, True)

    pack = ("--pack", campaign.pack.name)
    assert cli("policies", "tips", *pack).code != 0
    campaign.name_first("good+v1")
    assert "tips of good+v1" in cli.ok("policies", "tips", *pack).out
    best = [tip.quality for tip in read_tips(cli.home / "policies" / "tips.jsonl") if tip.quality is not None]
    assert judged
    assert best
    assert max(judged) < min(best) <= 1
