"""Judging at the keyboard, at a real pseudo-terminal against the real MLflow."""

import io
import re
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import pytest
from rich.console import Console

from tests.conftest import Cli
from tests.judging.hostile import SIZES, acting, hostile_texts
from tests.judging.live import answer, opened
from tests.judging.pseudo_terminal import PseudoTerminal
from tests.support.sheets import REFERENCES
from tipbench.bench.cells import read_cells
from tipbench.bench.sittings import Answer
from tipbench.errors import TipbenchError, TrackingUnavailable
from tipbench.judging.keyboard.loop import Storing
from tipbench.judging.keyboard.screen import Draft, ShownItem
from tipbench.judging.request import SittingRequest
from tipbench.judging.service import Judging, MakeAnswers
from tipbench.judging.sheet import LiveSitting, SheetItem, SheetRubric, SheetScenario
from tipbench.show.console import make_console
from tipbench.show.screen import TerminalScreen
from tipbench.tracking import Tracking

Open = Callable[..., PseudoTerminal]
KNOWN = {"".join(text.split()): scores for text, scores in REFERENCES.items()}
"""Anchors by their letters: a screen wraps."""
SCALES = ("relevance", "actionability", "tone")


@pytest.fixture
def sit_down(collected: str) -> Iterator[Open]:
    """`tipbench judge --interactive` on a fresh experiment; whatever is left at the end is killed."""
    terminals: list[PseudoTerminal] = []

    def sit(*arguments: str, **how: object) -> PseudoTerminal:
        asked = ("judge", "--experiment", collected, "--interactive", "--judged-by", "anna", *arguments)
        terminals.append(PseudoTerminal(*asked, **how))  # pyright: ignore[reportArgumentType]
        return terminals[-1]

    yield sit
    for terminal in terminals:
        terminal.close()


def tip_on(terminal: PseudoTerminal) -> str:
    """The tip on the screen: what stands between the second and the third line."""
    rows = [row for _, row in sorted(terminal.rows.items())]
    rules = [place for place, row in enumerate(rows) if row.startswith("───")]
    return "".join("".join(rows[rules[1] + 1 : rules[2]]).split())


def judge_soundly(terminal: PseudoTerminal, *, items: int | None = None, score: int = 3) -> int:
    """Presses the keys for so many items; anchors get what they deserve. Returns how many there are."""
    place, total = place_on(terminal)
    last = total if items is None else place + items - 1
    while place <= last:
        terminal.wait_for(f"{place} of {total} ")
        known = KNOWN.get(tip_on(terminal))
        terminal.send("".join(str((known or {}).get(scale, score)) for scale in SCALES))
        place += 1
    return total


def place_on(terminal: PseudoTerminal) -> tuple[int, int]:
    found = re.search(r"(\d+) of (\d+) ", terminal.wait_for(" stored"))
    assert found
    return int(found[1]), int(found[2])


def sitting_of(live: Judging, experiment: str) -> LiveSitting:
    (line,) = live.status(experiment=experiment).sittings
    return live.look(line.sitting, experiment=experiment)


def test_everything_is_judged_with_keys_and_the_board_follows(
    cli: Cli, sit_down: Open, collected: str, tracking: Tracking
) -> None:
    terminal = sit_down(NO_COLOR="1")
    total = judge_soundly(terminal)
    terminal.wait_for(f"All {total} are judged, {total} stored.")
    terminal.send("\r")
    assert terminal.end() == 0
    assert f"Handed in: {total} items, accepted." in terminal.output
    assert terminal.in_order()
    assert not re.search(r"\x1b\[[\d;]*(?<![\d])(3[0-8]|4[0-8]|9[0-7])[;m]", terminal.output)
    report = cli("compare", "--experiment", collected, "--json").json()
    assert report["judged"] == report["candidates"] > 0
    (line,) = cli.ok("judge", "status", "--experiment", collected, "--json").json()["sittings"]
    assert (line["judged_by"], line["judge_kind"], line["state"]) == ("anna", "human", "accepted")
    _check_blind(terminal.output, tracking, collected)


def _check_blind(output: str, tracking: Tracking, experiment: str) -> None:
    for cell in read_cells(tracking.read_runs(tracking.find_experiment(experiment))):
        facts = cell.facts
        secrets = (facts.model, facts.model_digest, cell.run.run_id, facts.key, facts.arm, facts.prompt_hash)
        assert not [secret for secret in secrets if secret in output]
        assert not re.search(rf"(?<![\w-]){re.escape(facts.prompt)}(?![\w-])", output)
    assert "anchor" not in output.lower()


def test_situation_rubric_tip_and_keys_fit_on_80_by_24(sit_down: Open) -> None:
    terminal = sit_down(columns=80, lines=24)
    screen = terminal.wait_for("▸relevance 1–5").splitlines()
    assert len(screen) <= 24
    assert max(map(len, screen)) <= 80
    text = "\n".join(screen)
    for part in ("persona", "5  one of the open tasks", "1  about something else", "q leave", "format_ok"):
        assert part in text
    terminal.send("?")
    terminal.wait_for("undo: the last score")
    terminal.send("x")
    terminal.wait_for("▸relevance 1–5")
    terminal.send("r")
    terminal.wait_for("Rubric tip-v1")
    terminal.send("     ")
    terminal.wait_for("actionability: could the person")
    terminal.send("x")
    terminal.wait_for("▸relevance 1–5")
    terminal.send("7")
    terminal.wait_for("relevance goes from 1 to 5")


def test_undo_takes_back_a_score_and_then_the_item_before(
    sit_down: Open, live: Judging, collected: str
) -> None:
    terminal = sit_down()
    _, total = place_on(terminal)
    terminal.send("uu")
    terminal.wait_for("nothing to undo")
    terminal.send("5u4")  # the first score of the first item is a 4
    terminal.wait_for("▸actionability")
    terminal.send("33")
    terminal.wait_for(f"2 of {total} · 1 stored")
    terminal.send("u")
    terminal.wait_for(f"1 of {total} (again)")
    terminal.send("5")
    terminal.wait_for(f"2 of {total} · 1 stored")
    terminal.send("q")
    assert terminal.end() == 0
    sitting = sitting_of(live, collected)
    first = sitting.section.items[0]
    assert sitting.answers[first.id].scores == {"relevance": 4, "actionability": 3, "tone": 5}
    assert len(sitting.answers) == 1


def test_skipped_items_come_at_the_end_and_flags_and_comments_are_kept(
    sit_down: Open, live: Judging, collected: str
) -> None:
    terminal = sit_down()
    _, total = place_on(terminal)
    terminal.send("sf1cFür später, q und ü.\x7f!\r")
    terminal.wait_for("(comment)")
    terminal.send("222")
    terminal.wait_for(f"2 of {total} · 1 stored")
    for place in range(3, total + 1):
        terminal.send("333")
        terminal.wait_for(f"{place} of {total}")
    terminal.send("s")
    terminal.wait_for("this is the last one")
    terminal.send("333")
    terminal.wait_for(f"All {total} are judged, {total} stored.")
    terminal.send("q")
    assert terminal.end() == 0
    sitting = sitting_of(live, collected)
    first, second = sitting.section.items[:2]
    assert list(sitting.answers)[-1] == first.id
    said = sitting.answers[second.id]
    assert said.reason == "Für später, q und ü!"
    assert said.flags == {**second.flags, "format_ok": not second.flags["format_ok"]}
    assert sitting.answers[first.id].flags == first.flags


def test_leaving_in_the_middle_loses_nothing_and_one_comes_back_to_the_same_item(
    sit_down: Open, live: Judging, collected: str
) -> None:
    terminal = sit_down()
    judge_soundly(terminal, items=4)
    terminal.send("3")  # half an item is no answer
    terminal.send("q")
    assert terminal.end() == 0
    assert "4 of" in terminal.output
    assert "Come back within 30 minutes" in terminal.output
    assert terminal.in_order()
    before = sitting_of(live, collected)
    assert len(before.answers) == 4
    again = sit_down()
    assert place_on(again)[0] == 5
    total = judge_soundly(again)
    again.wait_for(f"All {total} are judged, {total} stored.")
    again.send("\r")
    assert again.end() == 0
    after = sitting_of(live, collected)
    assert after.token == before.token
    assert after.state == "accepted"
    assert after.answers.items() >= before.answers.items()


def test_killed_in_the_middle_it_goes_on_where_it_was(sit_down: Open, live: Judging, collected: str) -> None:
    for killed_at in (1, 3, 5):
        terminal = sit_down()
        place, total = place_on(terminal)
        judge_soundly(terminal, items=killed_at - place + 1)
        terminal.wait_for(f"{killed_at} stored")
        terminal.send("33")
        terminal.signal(signal.SIGKILL)
        assert terminal.end() == -signal.SIGKILL
        assert len(sitting_of(live, collected).answers) == killed_at
    last = sit_down()
    judge_soundly(last)
    last.wait_for(f"All {total} are judged, {total} stored.")
    last.send("\r")
    assert last.end() == 0
    assert sitting_of(live, collected).state == "accepted"


def test_a_judge_far_off_is_told_so_without_naming_an_item(sit_down: Open, cli: Cli, collected: str) -> None:
    terminal = sit_down()
    _, total = place_on(terminal)
    for place in range(1, total + 1):
        terminal.wait_for(f"{place} of {total}")
        terminal.send("111")
    terminal.wait_for(f"All {total} are judged, {total} stored.")
    terminal.send("\r")
    assert terminal.end() == 0
    said = " ".join(terminal.output[terminal.output.rfind("Handed in") :].split())
    assert "refused: too far from the checks" in said
    assert "your scores are off by about" in said
    assert "tipbench judge accept" in said
    assert cli("compare", "--experiment", collected, "--json").json()["judged"] == 0


def test_the_screen_follows_the_window(sit_down: Open) -> None:
    terminal = sit_down()
    terminal.wait_for("▸relevance")
    terminal.resize(120, 40)
    terminal.wait_for("─" * 120)
    terminal.resize(60, 16)
    terminal.settle()
    assert max(map(len, terminal.screen.splitlines())) <= 120
    terminal.resize(30, 8)
    terminal.wait_for("Make the window")
    terminal.resize(80, 24)
    terminal.wait_for("▸relevance")
    terminal.send("333")
    terminal.wait_for("1 stored")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_the_terminal_is_given_back_after_a_signal_and_answers_are_stored(
    sit_down: Open, live: Judging, collected: str, number: int
) -> None:
    terminal = sit_down()
    judge_soundly(terminal, items=2)
    terminal.wait_for("3 of")
    terminal.signal(number)
    assert terminal.end() == (0 if number == signal.SIGINT else 128 + number)
    assert terminal.in_order()
    assert len(sitting_of(live, collected).answers) == 2


def test_a_window_that_is_closed_loses_nothing(sit_down: Open, live: Judging, collected: str) -> None:
    terminal = sit_down()
    judge_soundly(terminal, items=2)
    terminal.wait_for("3 of")
    # By the signal, or by a read that found no terminal any more: whichever comes first.
    assert terminal.hang_up() != 0
    assert len(sitting_of(live, collected).answers) == 2


def test_control_z_gives_the_terminal_back_and_it_goes_on_after(sit_down: Open) -> None:
    terminal = sit_down(under_shell=True)
    terminal.wait_for("▸relevance")
    terminal.send("4")
    terminal.wait_for("▸actionability")
    terminal.send("\x1a")
    terminal.wait_for_output("STOPPED")
    assert terminal.in_order()
    terminal.send("fg\n")
    terminal.wait_for("relevance 4")
    assert terminal.on_alternate_screen
    terminal.send("33")
    terminal.wait_for("1 stored")
    terminal.send("q")
    assert terminal.end() == 0
    assert terminal.in_order()


def test_a_sitting_that_was_closed_meanwhile_says_so_and_gives_the_terminal_back(
    sit_down: Open, live: Judging, collected: str
) -> None:
    terminal = sit_down()
    judge_soundly(terminal, items=1)
    terminal.wait_for("1 stored")
    live.close(sitting_of(live, collected).token, experiment=collected)
    terminal.send("333")
    assert terminal.end() != 0
    assert "1 answers were not stored" in terminal.output
    assert terminal.in_order()


def test_without_a_terminal_the_file_is_offered(cli: Cli, collected: str) -> None:
    outcome = cli("judge", "--experiment", collected, "--interactive")
    assert outcome.code == 2
    assert "needs a terminal" in outcome.err
    assert "--export sheet.json" in outcome.err
    assert cli.ok("judge", "status", "--experiment", collected, "--json").json()["sittings"] == []


@dataclass(frozen=True)
class _Slow(Judging):
    """Waits for a sign before it stores; the first times the server is away."""

    go: threading.Event = field(default_factory=threading.Event)
    failures: list[TrackingUnavailable] = field(default_factory=list[TrackingUnavailable])

    def submit(
        self,
        token: str,
        answers: Mapping[str, Answer] | MakeAnswers,
        *,
        experiment: str,
        keep_open: bool = False,
    ) -> LiveSitting:
        assert self.go.wait(60)
        if self.failures:
            raise self.failures.pop()
        return super().submit(token, answers, experiment=experiment, keep_open=keep_open)


def test_nothing_is_shown_as_stored_before_it_is(live: Judging, collected: str) -> None:
    sitting = opened(live, collected, SittingRequest("anna"))
    first, second = sitting.waiting[:2]
    go = threading.Event()
    away = TrackingUnavailable("the server is away")
    slow = _Slow(live.tracking, live.stamps, live.locks, go=go, failures=[away])
    storing = Storing(slow, sitting, wake=lambda: None)
    storing.put(first.id, answer(first, 2))
    storing.put(second.id, answer(second))
    storing.put(first.id, answer(first, 4))
    assert (storing.stored, storing.waiting) == (0, 2)
    go.set()
    storing.finish()
    assert (storing.stored, storing.waiting) == (2, 0)
    assert live.look(sitting.token, experiment=collected).answers[first.id] == answer(first, 4)


def test_answers_that_cannot_be_stored_are_counted(live: Judging, collected: str) -> None:
    sitting = opened(live, collected, SittingRequest("anna"))
    go = threading.Event()
    go.set()
    away = [TrackingUnavailable("the server is away") for _ in range(9)]
    slow = _Slow(live.tracking, live.stamps, live.locks, go=go, failures=away)
    storing = Storing(slow, sitting, wake=lambda: None)
    for item in sitting.waiting[:3]:
        storing.put(item.id, answer(item))
    with pytest.raises(TipbenchError, match="3 answers were not stored: the server is away"):
        storing.finish()


@pytest.mark.parametrize("count", SIZES)
def test_hostile_tips_stay_on_their_screen(count: int) -> None:
    rubric = SheetRubric(name="r", text="## tone: how?\n| 5 | good |", scales={"tone": (1, 5)}, flags=())
    own = re.compile(r"\x1b\[(?:\d+;\d+H|[\d;]*m|\?(?:1049|25)[hl]|H)")
    for text in hostile_texts(count):
        out = io.StringIO()
        console = Console(file=out, force_terminal=True, width=80, height=24)
        screen = TerminalScreen(console)
        screen.enter()
        scenario = SheetScenario(label="S1", values={"persona": text[:2_000], "tasks": (text[:2_000],)})
        item = SheetItem(id="a", scenario="S1", text=text, flags={}, scores={"tone": None})
        shown = ShownItem(
            place=1, total=1, stored=0, waiting=0, judged_by=text[:99], changes=False, message=""
        )
        screen.show_item(Draft(item, {}, {}), scenario=scenario, rubric=rubric, shown=shown)
        left = own.sub("", out.getvalue())
        assert acting(left) == [], left
        assert out.getvalue().count("▸tone") == 1


def test_the_console_of_every_command_is_inert() -> None:
    assert acting(make_console().render_str("\x1b[2J\u202e").plain) == []
