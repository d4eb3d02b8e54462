"""Little or odd evidence by the command line: a clear answer, no traceback, no invented number."""

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.conftest import Cli
from tests.judging.auto_asking import auto
from tests.judging.counting_judge import CountingJudge
from tests.promotion.campaign import Campaign, make_pack
from tests.support.experiments import set_aside
from tipbench.pack import parse_pack
from tipbench.tracking import Tracking

INVENTED = re.compile(r"(?<![\w-])[-+−]?(nan|inf|infinity)(?![\w-])", re.IGNORECASE)
SAME = {"relevance": 3, "actionability": 3, "tone": 3}


@dataclass(frozen=True)
class Bench:
    """Makes campaigns whose first arm is champion, and asks every command about them."""

    cli: Cli
    tracking: Tracking

    def collect(self, levels: dict[str, float], *, scenarios: int = 4) -> Campaign:
        pack = make_pack(f"pack-{uuid4().hex[:8]}", scenarios=scenarios)
        made = Campaign(self.tracking, self.cli.home, levels, pack=pack, n_tips=1)
        return made.collect(champion="old+v1")

    def where(self, campaign: Campaign) -> tuple[str, str]:
        return "--experiment", campaign.experiment

    def compare(self, campaign: Campaign, *, code: int) -> Any:
        """The board in all its forms, which agree; gives the one for machines."""
        where = self.where(campaign)
        forms = {
            form: self.cli("compare", *where, *form)
            for form in ((), ("--json",), ("--csv",), ("--markdown",))
        }
        page = self.cli("compare", *where, "--html", "report.html")
        for outcome in (*forms.values(), page):
            assert outcome.code == code, outcome.out + outcome.err
            assert not INVENTED.search(outcome.out), outcome.out
        report = forms["--json",].json()
        rows = list(csv.DictReader(io.StringIO(forms["--csv",].out)))
        assert [row["arm"] for row in rows] == [line["name"] for line in report["standings"]]
        assert "<html" in Path("report.html").read_text(encoding="utf-8")
        return report

    def gate(self, campaign: Campaign, *, code: int, failed: Sequence[str]) -> Any:
        """The gate, and promote, which says the same and promotes nobody."""
        where = self.where(campaign)
        shown = self.cli("gate", *where)
        asked = self.cli("gate", *where, "--json")
        refused = self.cli("promote", *where, "--json")
        assert (shown.code, asked.code, refused.code) == (code,) * 3, shown.out + shown.err
        assert not INVENTED.search(shown.out), shown.out
        report = asked.json()
        assert [rule["name"] for rule in report["rules"] if not rule["passed"]] == list(failed)
        assert (refused.json()["outcome"], refused.json()["gate"]["rules"]) == ("refused", report["rules"])
        champion = self.cli.ok("champion", "--pack", campaign.pack.name, "--json").json()
        assert champion["arm"] == "old+v1"
        return report


@pytest.fixture
def bench(cli: Cli, tracking: Tracking, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setenv("TIPBENCH_GATE_REQUIRE", "lazy")
    return Bench(cli, tracking)


def test_nothing_judged_and_then_a_single_verdict_for_each_arm(bench: Bench) -> None:
    made = bench.collect({"old": 6.0, "new": 12.0})
    nothing = bench.compare(made, code=4)
    assert (nothing["judged"], nothing["winner"]) == (0, None)
    assert all(line["composite"] is None for line in nothing["standings"])
    assert bench.gate(made, code=4, failed=[])["look"] is None
    made.judge(blocks=1)
    single = bench.compare(made, code=4)
    assert (single["scenarios"], single["winner"], single["pairs"]) == (1, None, [])
    assert all(line["p_best"] is None and line["against_best"] is None for line in single["standings"])
    early = bench.gate(made, code=4, failed=[])
    assert (early["difference"], early["bound"], early["look"]) == (None, None, None)


def test_a_single_scenario(bench: Bench) -> None:
    made = bench.collect({"old": 6.0, "new": 12.0}, scenarios=1)
    made.judge()
    report = bench.compare(made, code=4)
    assert "an interval and P(best) need at least 3" in " ".join(report["remarks"])
    said = bench.gate(made, code=3, failed=["scenarios"])
    assert "only 1 were collected" in said["rules"][0]["detail"]
    assert said["look"] is None


def test_all_ties(bench: Bench) -> None:
    made = bench.collect({"old": 6.0, "new": 12.0, "other": 9.0})
    made.judge(score_of=SAME)
    report = bench.compare(made, code=3)
    assert all(line["tied_for_first"] for line in report["standings"])
    assert "nothing varies" in " ".join(report["remarks"])
    said = bench.gate(made, code=3, failed=["lazy tier"])
    assert (said["difference"], said["bound"]) == (0.0, 0.0)


def test_all_failures(bench: Bench) -> None:
    made = bench.collect({"old": 0.0, "new": 0.0})
    report = bench.compare(made, code=4)
    assert [line["answered"] for line in report["standings"]] == [0, 0]
    handed = bench.cli.ok("judge", *bench.where(made), "--export", "sheet.json", "--json").json()
    assert handed == {"file": None, "sections": 0, "items": 0}
    assert not Path("sheet.json").exists()
    bench.gate(made, code=3, failed=["candidates"])


def test_a_tier_is_missing(bench: Bench, auto_judge: CountingJudge, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIPBENCH_GATE_REQUIRE", "both")
    made = bench.collect({"old": 6.0, "new": 12.0})
    bench.cli.ok(*auto(made.experiment))
    by_model = bench.compare(made, code=4)
    assert (by_model["tiers"]["used"], by_model["winner"]) == ("auto", None)
    assert all(line["composite"] is None for line in by_model["standings"])
    bench.gate(made, code=4, failed=[])
    lazily = replace(made, experiment=made.experiment + "-lazy").collect()
    bench.cli.ok("gate", *bench.where(lazily), "--plan")
    lazily.judge()
    alone = bench.compare(lazily, code=0)
    assert (alone["tiers"]["used"], alone["tiers"]["alpha"]) == ("lazy", None)
    said = bench.gate(lazily, code=4, failed=["auto tier"])
    assert (said["look"], said["auto_difference"]) == (None, None)


def test_mixed_contents_and_a_champion_outside_the_grid(bench: Bench) -> None:
    made = bench.collect({"old": 6.0, "new": 12.0})
    elsewhere = replace(made, levels={"new": 12.0, "third": 6.0}, experiment=made.experiment + "-b").collect()
    elsewhere.judge()
    assert bench.compare(elsewhere, code=0)["winner"] == "new+v1"
    outside = bench.gate(elsewhere, code=4, failed=["champion"])
    assert "old+v1 has no cell in this experiment" in outside["rules"][0]["detail"]
    files = made.pack.files | {"prompts/v1.md": made.pack.files["prompts/v1.md"] + "\nBe brief.\n"}
    with set_aside(made.tracking, made.experiment):
        replace(made, pack=parse_pack(files)).collect()
    mixed = bench.cli("compare", *bench.where(made), "--json")
    assert (mixed.code, "tipbench collect retire" in mixed.err) == (1, True), mixed.err
    assert mixed.json()["error"]["code"] == "failed"
    bench.gate(made, code=3, failed=["contents"])
    forced = ("--force", "--challenger", "new+v1", "--reason", "anyway")
    assert bench.cli("promote", *bench.where(made), *forced).code == 1
