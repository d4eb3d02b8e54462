"""What board, gate, cells and two arms side by side say; what the gate's form keeps and asks for."""

import re
from urllib.parse import quote

import pytest

from tests.admin.conftest import HERE, PASSWORD, Site
from tipbench.admin.panel import templates
from tipbench.admin.promotion import ActForm
from tipbench.admin.side import DiffLine, diff_prompts
from tipbench.admin.users import User
from tipbench.promotion.rules import GateReport, NextLook


@pytest.fixture(scope="module")
def page(site: Site, judged: str) -> "Pages":
    site.client.post("/sign-in", data={"name": "the-admin", "password": PASSWORD}, headers=HERE)
    return Pages(site, quote(judged, safe=""))


class Pages:
    """The pages of one experiment as an admin sees them."""

    def __init__(self, site: Site, name: str) -> None:
        self.site, self.name = site, name

    def get(self, place: str, **asked: str) -> str:
        found = self.site.client.get(f"/{place}/{self.name}", params=asked)
        assert found.status_code == 200, found.text[:500]
        return found.text

    def act(self, **form: str) -> str:
        found = self.site.client.post(f"/promotions/{self.name}", data=form, headers=HERE)
        assert found.status_code in (200, 303), found.text[:500]
        return found.text if found.status_code == 200 else self.get("promotions")


def badges(board: str) -> list[tuple[str, str, str]]:
    """Of every line its badge's colour and words, or its place, and its interval."""
    rows = re.findall(r"<tr data-line=.*?</tr>", board, re.DOTALL)
    return [
        (
            found[1] if (found := re.search(r'badge (\w+)">(.*?)<', row)) else "",
            found[2] if found else re.findall(r'data-label="Place">(\d+)', row)[0],
            re.findall(r"\[(.*?)\]", row)[0] if "[" in row else "",
        )
        for row in rows
    ]


def test_a_line_is_green_only_as_a_winner_and_grey_while_its_interval_reaches_0(page: Pages) -> None:
    lines = badges(page.get("e"))
    assert len(lines) >= 6
    for colour, words, interval in lines:
        assert (colour == "good") == (words == "winner")
        assert (colour == "quiet") == (words == "tied 1")
        if interval:
            high = float(interval.split(", ")[1].replace("−", "-"))
            assert (high >= 0) == bool(colour), interval


def test_the_board_has_the_chance_of_each_and_shades_over_the_rubric(page: Pages) -> None:
    board = page.get("e")
    assert 'data-label="P(best)"' in board
    assert "shaded over the rubric, 2 to 17" in board
    assert 'role="img"' not in board.split('data-testid="heat"')[0], "an interval is read once: as text"


@pytest.mark.parametrize("by", ["model", "prompt"])
def test_by_model_and_by_prompt_the_cells_are_those_of_the_line(page: Pages, by: str) -> None:
    board = page.get("e", by=by)
    first = re.findall(r'<tr data-line="(.*?)"', board)[-1]
    shown = page.get("e", by=by, line=first)
    (title,) = re.findall(r'data-testid="arm"[^>]*>(.*?)<', shown)
    assert title == first
    arms = re.findall(r'data-label="Arm">(.*?)<', shown)
    assert arms
    for arm in arms:
        assert first in (arm.rpartition("+")[0], arm.rpartition("+")[2])


def test_the_gate_page_answers_keeps_what_was_typed_and_asks_twice_before_force(page: Pages) -> None:
    arms = re.findall(r'<option value="([^"]+)"', page.get("promotions"))
    champion, challenger = arms[0], arms[-1]
    assert "Name the first champion" in page.get("promotions")
    named = page.act(wanted="initial", arm=champion, reason="the first one")
    assert "Where the gate stands" in named
    assert f'<option value="{champion}"' not in named, "the champion is no challenger"
    assert f"<b>{champion}</b>" in named
    assert "The first check fixes the plan" in named
    refused = page.act(wanted="force", arm=challenger, reason='because "I" say so')
    assert "tick the box" in refused
    assert refused.count('value="because &#34;I&#34; say so"') == 1
    assert f'<option value="{challenger}" selected>' in refused
    assert f"<b>{champion}</b>" in page.get("promotions"), "nothing was promoted"
    asked = page.act(wanted="ask", arm=challenger)
    assert "What the gate says" in asked
    assert f'<option value="{challenger}" selected>' in asked
    forced = page.act(wanted="force", arm=challenger, reason="because", confirmed="true")
    assert f'<th scope="row">{challenger} <span class="badge good">in force' in forced


def show_gate(report: GateReport) -> str:
    """The page with this answer."""
    user = User(name="ada", role="admin", created_ms=0)
    champion = {
        "arm": "old+v1",
        "at": "2026-11-18T10:00",
        "how": "initial",
        "by": "ada",
        "experiment": "bench",
    }
    history = [champion | {"doubtful": (), "reason": "first", "in_force": True, "overruled": ()}]
    shown = {"name": "bench", "pack": "tip", "history": history, "arms": ["new+v1"], "form": ActForm()}
    told = {"asked": False, "report": report, "trouble": "", "margin": 0.0, "problem": "", "drawing": None}
    base = {"user": user, "path": "/promotions/bench", "page_name": "promotions", "demo": False}
    return templates.env.get_template("promotions.html").render(shown | told | base)


REPORT = GateReport(
    experiment="bench",
    pack="tip",
    champion="old+v1",
    version=1,
    champion_run="r",
    against="champion",
    asked_for=None,
    answer="undecided",
    challenger="new+v1",
    counted=194,
    budget=353,
    looks=(0.5, 0.75, 1.0),
    look=1,
    difference=2.73,
    bound=-0.75,
    next_look=NextLook(look=2, at=265, missing=71, waiting=159, blocks={"founder-morning": 18, "x": 5}),
)


def test_the_gate_says_who_leads_how_sure_it_is_and_offers_the_verdicts_that_decide() -> None:
    shown = show_gate(REPORT)
    for words in (
        "<b>new+v1</b>",
        "<b>old+v1</b>",
        "Leads by 2.73. The careful lower bound is −0.75; it must be above 0.",
        "<b>71 more verdicts</b> until look 2, best on founder-morning (18), x (5).",
        'href="/judge/bench?next=71">Judge the 71 that decide',
        "Checking now uses up no look: look 2 of 3 comes 71 verdicts from now.",
        "194 of 353 verdicts are there.",
    ):
        assert words in shown, words
    steps = re.findall(r'<li class="(\w*)">look (\d) at (\d+) verdicts', shown)
    assert steps == [("behind", "1", "177"), ("now", "2", "265"), ("", "3", "353")]


def test_it_says_when_a_check_uses_up_a_look() -> None:
    due = REPORT.next_look and REPORT.next_look.model_copy(update={"missing": 0})
    shown = show_gate(REPORT.model_copy(update={"next_look": due}))
    assert "Checking now uses up look 2 of 3: it has its 265 verdicts." in shown
    assert "that decide" not in shown
    behind = show_gate(REPORT.model_copy(update={"difference": -1.5}))
    assert "Is behind by 1.50." in behind


def test_the_button_opens_a_sitting_of_those_that_decide(page: Pages) -> None:
    start = page.get("judge", next="71")
    assert 'name="next" value="71"' in start
    assert "of the 71 tips that decide" in start


def test_a_tip_never_stands_without_its_situation_and_only_bad_flags_stand_out(page: Pages) -> None:
    run = re.findall(r'href="/cell/(\w+)/', page.get("arm"))[0]
    for shown in (page.get(f"cell/{run}"), page.get("side")):
        assert "<dt>persona</dt>" in shown
        assert "<dt>tasks</dt>" in shown
        said = re.findall(r'<span class="badge (\w+)">(format ok|overlong): (yes|no)', shown)
        assert said
        for colour, flag, value in said:
            assert (colour == "bad") == ((flag == "overlong") == (value == "yes")), (flag, value)


def test_side_by_side_begins_with_the_champion_against_the_best_other_where_they_differ_most(
    page: Pages,
) -> None:
    history = page.get("promotions")
    champion = re.findall(r'<th scope="row">([^<]+) <span class="badge good">in force', history)
    ranked = [name for name in re.findall(r'<tr data-line="(.*?)"', page.get("e")) if name not in champion]
    shown = page.get("side")
    chosen = re.findall(r'<option value="([^"]+)" selected>', shown)
    assert chosen == [*champion, *ranked][:2]
    pairs = re.findall(r"<small>([\d.]+) : ([\d.]+)</small>", shown)
    leads = [abs(float(one) - float(other)) for one, other in pairs]
    assert leads == sorted(leads, reverse=True)
    # Another arm is looked at in the same situation.
    here = re.findall(r'name="scenario" value="(.*?)"', page.get("side", scenario=last_scenario(shown)))
    assert here == [last_scenario(shown)]


def last_scenario(shown: str) -> str:
    return re.findall(r"scenario=([^\"&]+)\"", shown)[-1]


def test_the_difference_of_two_prompts_is_shown_line_by_line(page: Pages) -> None:
    board = page.get("e")
    arms = [name.split("+") for name in re.findall(r'<tr data-line="(.*?)"', board)]
    model = arms[0][0]
    prompts = [prompt for name, prompt in arms if name == model]
    two = page.get("side", left=f"{model}+{prompts[0]}", right=f"{model}+{prompts[1]}")
    assert "How the prompts differ" in two
    assert "<ins>+ " in two
    assert "<del>− " in two
    same = page.get(
        "side",
        left="+".join(arms[0]),
        right=next("+".join(a) for a in arms if a[0] != model and a[1] == arms[0][1]),
    )
    assert "Both have the same prompt" in same


def test_a_difference_has_the_lines_around_it_and_marks_what_is_left_out() -> None:
    one = "\n".join(["a", "b", "c", "old", "d", "e", "f", "g", "h", "i", "x"])
    other = one.replace("old", "new\nand more").replace("x", "y")
    found = diff_prompts(one, other)
    assert [line for line in found if line.kind in ("del", "ins")] == [
        DiffLine("del", "old"),
        DiffLine("ins", "new"),
        DiffLine("ins", "and more"),
        DiffLine("del", "x"),
        DiffLine("ins", "y"),
    ]
    assert DiffLine("gap", "…") in found
    assert DiffLine("", "f") not in found
    assert diff_prompts(one, one) == []
