"""One command from prompts to a champion, stopped wherever a lazy judge is needed."""

from tests.improve.conftest import DEFECT, DEFECTIVE, GOOD, Bench, fill_sheets
from tests.improve.scripted_server import MODEL, N_TIPS
from tipbench.pack import read_pack

ASKED = ("improve", "--prompts", "v1,v2", "--models", MODEL, "--n-tips", str(N_TIPS), "--scenarios", "all")


def test_one_command_collects_judges_asks_the_gate_and_promotes(bench: Bench) -> None:
    bench.name_first()
    first = bench.run(*ASKED)
    assert first.code == 4, first.out + first.err
    assert bench.server.generated == 2 + 16
    assert "against the anchors" in first.out, "the automatic judge judged"
    go_on = first.out.splitlines()[-1]
    assert go_on.startswith("  tipbench improve --prompts v1,v2 ")
    assert f"--experiment {bench.experiment}" in go_on
    waiting = bench.run(*ASKED)
    assert (waiting.code, "still missing in sheet.json" in waiting.out) == (4, True)
    fill_sheets()
    promoted = bench.go_on(*ASKED)
    assert promoted.code == 0, promoted.out + promoted.err
    assert f"{MODEL}+v2 is champion" in promoted.out
    assert DEFECT not in bench.champion()
    again = bench.run(*ASKED)
    assert (again.code, "already" in again.out) == (0, True), again.out + again.err
    assert bench.server.generated == 2 + 16


def test_what_the_gate_could_say_nothing_about_is_refused_before_anything_is_generated(bench: Bench) -> None:
    bench.name_first()
    made = bench.server.generated
    alone = bench.run(
        "improve", "--prompts", "v1", "--models", MODEL, "--n-tips", str(N_TIPS), "--scenarios", "all"
    )
    assert (alone.code, "nobody challenges the champion" in alone.err) == (2, True), alone.err
    few = bench.run(*ASKED, "--n-scenarios", "2")
    assert (few.code, "2 scenarios are too few: the gate needs 4" in few.err) == (2, True), few.err
    assert bench.server.generated == made


def test_what_is_not_better_is_not_promoted(bench: Bench) -> None:
    bench.name_first()
    bench.server.level_of = lambda prompt: GOOD if "friendly" in prompt else DEFECTIVE
    refused = bench.go_on(*ASKED)
    assert refused.code == 3, refused.out + refused.err
    assert "stays champion" in refused.out
    assert bench.champion() == read_pack(bench.folder).prompts[0].text


def test_without_a_champion_the_board_says_who_is_ahead(bench: Bench) -> None:
    outcome = bench.go_on(*ASKED)
    assert outcome.code == 0, outcome.out + outcome.err
    assert "There is no champion yet" in outcome.out
    assert f"--initial {MODEL}+v2" in outcome.out


def test_what_belongs_to_new_versions_is_refused_with_prompts(bench: Bench) -> None:
    refused = bench.run(*ASKED, "--rounds", "2")
    assert (refused.code, "--rounds does not go with --prompts" in refused.err) == (2, True), refused.err
    alone = bench.run("improve", "--models", MODEL)
    assert (alone.code, "--models goes with --prompts" in alone.err) == (2, True), alone.err
