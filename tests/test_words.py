"""The last word counts, whatever the clocks of the hosts say; who says one that is not in force is told."""

import threading
from collections.abc import Generator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.judging.live import ANNA, answer
from tests.promotion.campaign import Campaign, judge_sheet
from tests.support.experiments import shift_clock
from tests.support.fault_proxy import Meeting
from tests.support.hosts import Host
from tipbench.bench.cells import RETIRED_TAG, Retirement
from tipbench.bench.evidence import Evidence
from tipbench.bench.sittings import Decision, EndOfJudging
from tipbench.bench.words import StoredWord, read_words
from tipbench.errors import TrackingUnavailable, WordLost
from tipbench.judging.request import SittingRequest
from tipbench.judging.service import Judging
from tipbench.records import Record
from tipbench.tracking import Tracking
from tipbench.tracking.journal import Event, Journal, journal_folder
from tipbench.tracking.runs import Run

HOUR = 3600.0
Hosts = tuple[Host, Host]


@pytest.fixture
def campaign(tracking: Tracking, tmp_path: Path) -> Campaign:
    return Campaign(tracking, tmp_path, {"old": 5.0, "new": 13.0}, n_tips=1).collect()


@pytest.fixture
def hosts(mlflow_url: str, tmp_path: Path) -> Generator[Hosts]:
    """One an hour ahead, one an hour behind."""
    with ExitStack() as stack:
        fast, slow = (Host(tmp_path / f"host{off}", mlflow_url, off) for off in (HOUR, -HOUR))
        yield stack.enter_context(fast), stack.enter_context(slow)


def evidence_of(campaign: Campaign) -> Evidence:
    return campaign.judging().open(campaign.experiment, fresh=True).evidence


def first_scenario(campaign: Campaign) -> str:
    """A content as the command line has it."""
    facts = evidence_of(campaign).cells[0].facts
    return f"{facts.scenario}@{facts.scenario_hash.removeprefix('sha256:')[:12]}"


def test_judging_that_a_fast_host_closed_is_open_when_a_slow_one_reopens_it(
    hosts: Hosts, campaign: Campaign
) -> None:
    fast, slow = hosts
    with fast.working() as workbench:
        workbench.judging.end("enough", experiment=campaign.experiment)
    with slow.working() as workbench:
        workbench.judging.reopen("not enough", experiment=campaign.experiment)
    assert evidence_of(campaign).close_reason is None


def test_a_sitting_that_a_fast_host_refused_counts_when_a_slow_one_accepts_it(
    hosts: Hosts, campaign: Campaign
) -> None:
    campaign.judge()
    token = evidence_of(campaign).sittings[0].facts.token
    for host, accept in zip(hosts, (False, True), strict=True):
        with host.working() as workbench:
            decision = Decision(sitting=token, accept=accept, reason="seen", by="ada")
            found = workbench.judging.decide(decision, experiment=campaign.experiment)
            assert found.state == ("accepted" if accept else "refused")


def test_a_fast_host_does_not_take_a_live_sitting_away(hosts: Hosts, campaign: Campaign) -> None:
    fast, slow = hosts
    with slow.working() as workbench:
        opened = workbench.judging.open_sitting(ANNA, experiment=campaign.experiment)
    assert opened is not None
    with fast.working() as workbench:
        workbench.judging.tidy(campaign.experiment)
    item = opened.waiting[0]
    with slow.working() as workbench:
        now = workbench.judging.submit(
            opened.token, {item.id: answer(item)}, experiment=campaign.experiment, keep_open=True
        )
    assert (now.state, len(now.answers)) == ("open", 1)


def test_of_two_sittings_the_one_closed_first_counts_first(
    hosts: Hosts, campaign: Campaign, tmp_path: Path
) -> None:
    for host in hosts:
        sheet = tmp_path / f"sheet{host.off_by_seconds}.json"
        with host.working() as workbench:
            judging, name = workbench.judging, campaign.experiment
            judging.hand_out(sheet, SittingRequest(f"judge{host.off_by_seconds}", blocks=1), experiment=name)
            judge_sheet(sheet)
            judging.take_in(sheet, experiment=name, judged_by=None, close=False)
    closed = sorted(evidence_of(campaign).sittings, key=lambda sitting: sitting.closed_ms)
    assert [sitting.judged_by for sitting in closed] == [f"judge{host.off_by_seconds}" for host in hosts]


def test_a_close_comes_after_those_that_it_knew_though_the_clock_is_known_to_seconds_only(
    campaign: Campaign, tmp_path: Path
) -> None:
    for judge, behind_ms in (("first", 0), ("second", -2_000)):
        sheet = tmp_path / f"{judge}.json"
        judging = Judging(campaign.tracking, shift_clock(behind_ms), tmp_path / "locks")
        judging.hand_out(sheet, SittingRequest(judge, blocks=1), experiment=campaign.experiment)
        judge_sheet(sheet)
        judging.take_in(sheet, experiment=campaign.experiment, judged_by=None, close=False)
    closed = sorted(evidence_of(campaign).sittings, key=lambda sitting: sitting.closed_ms)
    assert [sitting.judged_by for sitting in closed] == ["first", "second"]


def test_what_an_earlier_version_left_in_a_journal_does_not_overrule_a_newer_word(
    hosts: Hosts, campaign: Campaign
) -> None:
    behind, other = hosts
    cell, content = evidence_of(campaign).cells[0], first_scenario(campaign)
    folder = journal_folder(behind.home, behind.proxy.url)
    journal = Journal.create(folder, name="left", server=behind.proxy.url)
    blank = campaign.judging().open(campaign.experiment).blank()
    tags = {RETIRED_TAG: f"scenario {content}", "judge_pending": "false"}
    left = blank.model_copy(update={"run_id": cell.run.run_id, "tags": tags})
    journal.append(Event(kind="write", write=left), durable=True)
    journal.close(finished=False)
    with other.working() as workbench:
        for undo in (False, True):
            workbench.collecting.retire(
                "scenario", content, experiment=campaign.experiment, by="bert", undo=undo
            )
    with behind.working() as workbench:
        workbench.judging.tidy(campaign.experiment)
    assert not list(folder.glob("*.jsonl")), "it was delivered"
    shown = campaign.tracking.read_run(cell.run.run_id).tags
    assert (shown[RETIRED_TAG], shown["judge_pending"]) == ("", "true")
    assert cell.facts.key in {each.facts.key for each in evidence_of(campaign).cells}


def test_a_word_that_arrives_after_a_newer_one_changes_nothing(hosts: Hosts, campaign: Campaign) -> None:
    """The request was lost on its way and its sender told so; it comes when another host has said more."""
    fast, slow = hosts
    with fast.working() as workbench, fast.held_back() as held, pytest.raises(TrackingUnavailable):
        workbench.judging.end("enough", experiment=campaign.experiment)
    with slow.working() as workbench:
        workbench.judging.reopen("go on", experiment=campaign.experiment)
    assert held.request is not None
    status, _, _ = held.request.forward(fast.url)
    assert (status, evidence_of(campaign).close_reason) == (400, None)


def test_of_two_words_at_once_one_is_in_force_and_the_other_host_is_told_whose(
    hosts: Hosts, campaign: Campaign
) -> None:
    meeting = Meeting(2, line="log-batch", body=b'"word:')
    lost: dict[str, WordLost] = {}

    def say(host: Host, by: str) -> None:
        host.proxy.meeting = meeting
        with host.working() as workbench:
            judging = workbench.judging
            word = judging.end if by == "anna" else judging.reopen
            try:
                word("at once", experiment=campaign.experiment, by=by)
            except WordLost as error:
                lost[by] = error

    threads = [threading.Thread(target=say, args=each) for each in zip(hosts, ("anna", "bert"), strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ((loser, error),) = lost.items()
    winner, word = {"anna": ("bert", "judging reopened"), "bert": ("anna", "judging closed")}[loser]
    assert f"{word}, said by {winner} at " in error.message
    assert evidence_of(campaign).judging_closed == (winner == "anna")


def store_as_earlier_versions_did(campaign: Campaign, kind: str, facts: Record, *, at_ms: int) -> None:
    blank = campaign.judging().open(campaign.experiment).blank()
    campaign.tracking.deliver(
        blank.model_copy(
            update={
                "tags_at_create": {"tipbench.kind": kind, "tipbench.state": "open"},
                "tags": {"tipbench.state": "complete", "tipbench.facts": facts.model_dump_json()},
                "start_time": at_ms,
                "end_time": at_ms,
            }
        )
    )


def test_words_of_earlier_versions_keep_their_order_and_come_before_all_new_ones(campaign: Campaign) -> None:
    campaign.judge()
    judging, name = campaign.judging(), campaign.experiment
    token = evidence_of(campaign).sittings[0].facts.token
    far_ms = campaign.stamps.now_ms() + 10**9
    refusal = Decision(sitting=token, accept=False, reason="asleep", by="ada")
    acceptance = refusal.model_copy(update={"accept": True})
    store_as_earlier_versions_did(campaign, "decision", refusal, at_ms=far_ms)
    store_as_earlier_versions_did(campaign, "decision", acceptance, at_ms=far_ms - 1)
    store_as_earlier_versions_did(campaign, "close", EndOfJudging(closed=True, reason="old"), at_ms=far_ms)
    found = evidence_of(campaign)
    assert (found.sittings[0].state, found.close_reason) == ("refused", "old")
    assert judging.decide(acceptance, experiment=name).state == "accepted"
    judging.reopen("go on", experiment=name)
    found = evidence_of(campaign)
    assert (found.sittings[0].state, found.close_reason) == ("accepted", None)


def test_saying_the_same_again_adds_no_word(campaign: Campaign) -> None:
    for _ in range(2):
        campaign.judging().end("enough", experiment=campaign.experiment, by="anna")
    runs = campaign.judging().open(campaign.experiment, fresh=True).runs
    assert [name for run in runs for name in run.params if name.startswith("word:")] == ["word:1"]
    assert [run.tags["tipbench.kind"] for run in runs].count("close") == 1


def test_a_word_that_cannot_be_read_keeps_its_place_and_says_nothing() -> None:
    kind = StoredWord[Retirement]
    word = kind(id="a", by="anna", at_ms=1, said=Retirement(content="model m@1"))
    params = {"word:1": word.model_dump_json(), "word:2": "{", "word:02": "{", "word:many": "{", "words": "{"}
    run = Run(
        run_id="r", name="", status="", start_time=0, artifact_uri="", tags={}, params=params, metrics={}
    )
    words = read_words(run, kind)
    assert (words.places, words.last) == (2, word)
