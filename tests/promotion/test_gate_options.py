"""Whom the gate is asked about, whom it is asked against, and a rollback for machines."""

from pathlib import Path

import pytest

from tests.conftest import Cli
from tests.promotion.campaign import Campaign
from tipbench.tracking import Tracking


@pytest.fixture
def campaign(tracking: Tracking, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Campaign:
    """Three arms far apart, all judged; the middle one is champion, and the lazy tier decides."""
    monkeypatch.setenv("TIPBENCH_GATE_REQUIRE", "lazy")
    (tmp_path / "home").mkdir(exist_ok=True)
    made = Campaign(tracking, tmp_path / "home", {"old": 8.5, "good": 13.0, "poor": 4.0}).collect(
        champion="old+v1"
    )
    made.judge()
    return made


def test_the_gate_is_asked_about_one_challenger_against_one_version(cli: Cli, campaign: Campaign) -> None:
    where, pack = ("--experiment", campaign.experiment), ("--pack", campaign.pack.name)
    unknown = cli("gate", *where, "--challenger", "other+v1")
    assert (unknown.code, "other+v1" in unknown.err) == (2, True), unknown.err
    worse = cli("gate", *where, "--challenger", "poor+v1", "--json")
    assert (worse.code, worse.json()["challenger"], worse.json()["champion"]) == (3, "poor+v1", "old+v1")

    cli.ok("promote", *where, "--force", "--challenger", "poor+v1", "--reason", "to have two versions")
    against_now = cli("gate", *where, "--challenger", "good+v1", "--json")
    assert (against_now.code, against_now.json()["champion"]) == (0, "poor+v1")
    against_first = cli("gate", *where, "--challenger", "poor+v1", "--against", "1", "--json")
    assert (against_first.code, against_first.json()["champion"]) == (3, "old+v1")
    nobody = cli("gate", *where, "--against", "hero")
    assert (nobody.code, "no version or alias 'hero'" in nobody.err) == (2, True), nobody.err

    back = cli.ok("champion", "rollback", *pack, "--reason", "complaints", "--json").json()
    assert (back["outcome"], back["champion"]["arm"]) == ("promoted", "old+v1")
    assert cli.ok("champion", *pack, "--json").json()["arm"] == "old+v1"
