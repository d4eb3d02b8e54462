"""The loop by the command line: a planted defect is found and removed, luck is not promoted."""

import json
import shlex
from pathlib import Path

from tests.improve.conftest import DEFECT, DEFECTIVE, GOOD, Bench, fill_sheets
from tests.improve.scripted_server import MODEL, N_TIPS, read_brief, remove_what_is_blamed
from tests.support.official import search_official
from tipbench.pack import read_pack


def write_versions(*versions: dict[str, str]) -> None:
    """What a writer makes of the brief it was given, and of nothing else."""
    brief = read_brief(Path("brief.md").read_text(encoding="utf-8"))
    Path("versions.json").write_text(json.dumps({"brief": brief.id, "versions": versions}), encoding="utf-8")


def test_a_planted_defect_is_found_and_removed(bench: Bench, mlflow_url: str) -> None:
    bench.name_first()
    first = bench.run("improve")
    assert (first.code, "Verdicts are needed: " in first.out) == (4, True), first.out + first.err
    assert f"--experiment {bench.experiment}" in first.out.splitlines()[-1]
    assert "still missing in sheet.json" in bench.run("improve").out
    fill_sheets()
    wanted = bench.run("improve")
    assert (wanted.code, "New versions of v1 are needed" in wanted.out) == (4, True), wanted.out
    go_on = shlex.split(wanted.out.splitlines()[-1])
    assert go_on[-2:] == ["--export", "brief.md"]
    exported = bench.cli(*go_on[1:])
    assert (exported.code, exported.out.rstrip().endswith("--apply versions.json")) == (4, True)
    check_brief(bench)
    write_versions(remove_what_is_blamed(Path("brief.md").read_text(encoding="utf-8")))
    outcome = bench.run("improve", "--apply", "versions.json")
    assert outcome.code == 4, outcome.out + outcome.err
    assert "improve" in outcome.out.splitlines()[-1]
    assert "--apply" not in outcome.out.splitlines()[-1], "what was taken in is in the store"
    assert outcome.out.splitlines()[-1].endswith("--sheet sheet-2.json"), "the sheet that is to be filled now"
    fill_sheets()
    passed = bench.go_on("improve")
    assert passed.code == 0, passed.out + passed.err
    assert bench.champion() == read_pack(bench.folder).prompts[0].text, "a person promotes"
    command = next(line for line in passed.out.splitlines() if "tipbench promote" in line)
    bench.cli.ok(*shlex.split(command)[1:])
    assert DEFECT not in bench.champion()
    assert "is champion" in bench.run("improve").out
    check_lineage(bench, mlflow_url)


def check_brief(bench: Bench) -> None:
    """It tells what the judges said, and nothing of the scenarios that confirm."""
    text = Path("brief.md").read_text(encoding="utf-8")
    assert read_brief(text).reasons == ("it talks about the weather",) * 4
    for scenario in read_pack(bench.folder).scenarios:
        seen = scenario.set == "wide" and not scenario.held_out
        assert (str(scenario.values["persona"]) in text) == seen, scenario.id


def check_lineage(bench: Bench, url: str) -> None:
    """Parent and reason of the version, as anybody reads them in MLflow."""
    (run,) = search_official(url, bench.experiment, "tags.`tipbench.kind` = 'version'")
    assert run["params.parent"] == "v1"
    assert DEFECT in run["tags.mlflow.note.content"]
    # Judges read the experiment's name: of the version's `v1-3fa2c1` it holds the digits only.
    digits = run["params.prompt"].removeprefix("v1-")
    confirmed = search_official(url, f"{bench.experiment}-confirm-{digits}", "tags.`tipbench.kind` = 'cell'")
    assert {cell["params.prompt"] for cell in confirmed} == {"v1", run["params.prompt"]}
    assert len(confirmed) == 8


def test_a_version_that_was_lucky_in_training_is_not_promoted(bench: Bench) -> None:
    bench.name_first()
    before = bench.champion()
    personas = [
        str(s.values["persona"]) for s in read_pack(bench.folder).scenarios if trained_on(s.id, bench)
    ]

    def level(prompt: str) -> float:
        if "LUCKY" not in prompt:
            return DEFECTIVE
        return GOOD if any(persona in prompt for persona in personas) else DEFECTIVE - 3

    bench.server.level_of = level
    bench.go_on("improve")
    bench.run("improve", "--export", "brief.md")
    prompt = read_brief(Path("brief.md").read_text(encoding="utf-8")).prompt
    write_versions({"why": "luck", "text": f"LUCKY\n{prompt}"})
    bench.run("improve", "--apply", "versions.json")
    fill_sheets()
    refused = bench.go_on("improve")
    assert refused.code == 3, refused.out + refused.err
    assert "(best), from v1: luck" in refused.out
    assert "FAIL verdicts of people and agents" in " ".join(refused.out.split())
    confirm = refused.out.split("in '")[1].split("'")[0]
    assert bench.cli("promote", "--experiment", confirm).code == 3
    assert bench.champion() == before


def trained_on(scenario: str, bench: Bench) -> bool:
    found = next(each for each in read_pack(bench.folder).scenarios if each.id == scenario)
    return found.set == "wide" and not found.held_out


def test_a_model_proposes_and_without_a_champion_the_board_decides(bench: Bench) -> None:
    bench.server.propose = lambda brief: json.dumps(remove_what_is_blamed(brief))
    assert bench.run("improve").code == 2, "nobody says what to improve"
    asked = ("improve", "--model", MODEL, "--prompt", "v1", "--n-tips", str(N_TIPS), "--proposer", MODEL)
    outcome = bench.go_on(*asked, "--versions", "1")
    assert outcome.code == 0, outcome.out + outcome.err
    assert f"--initial {MODEL}+v1-" in outcome.out
    assert "judges blame what the prompt asks for" in outcome.out
    assert bench.server.proposed == 1
    generated = bench.server.generated
    assert bench.run(*asked, "--versions", "1").code == 0
    assert bench.server.generated == generated, "nothing is made twice"
    bench.server.propose = lambda brief: '{"why": "shorter", "text": "Write tips."}'
    again = bench.run(*asked, "--rounds", "2")
    assert (again.code, "wrote no version that can be used" in again.err) == (1, True), again.out + again.err


def test_versions_that_cannot_be_used_are_refused_all_at_once(bench: Bench) -> None:
    bench.name_first()
    bench.go_on("improve")
    bench.run("improve", "--export", "brief.md")
    brief = read_brief(Path("brief.md").read_text(encoding="utf-8"))
    prompt, copied = brief.prompt, brief.texts[0]
    write_versions(
        {"why": "the same", "text": prompt},
        {"why": "no count", "text": "Write tips for {{persona}}. {{diversity}}"},
        {"why": "what is that", "text": prompt + "{{shoe_size}}"},
        {"why": "an example", "text": f"{prompt}\nFor example: {copied}"},
    )
    refused = bench.run("improve", "--apply", "versions.json")
    assert refused.code == 2
    found = (
        "version 1: its text is not new",
        "version 2, line 1",
        "n_tips",
        "shoe_size",
        "version 4: copies '",
    )
    for problem in found:
        assert problem in refused.err
    for content in ('{"brief": "x"}', "no json", '{"brief": "x", "versions": [{"why": "w", "text": "t"}]}'):
        Path("versions.json").write_text(content, encoding="utf-8")
        assert bench.run("improve", "--apply", "versions.json").code == 2
    assert "New versions of v1 are needed, for round 1" in bench.run("improve").out, "nothing was stored"
    core = bench.cli("improve", "--pack", str(bench.folder), "--experiment", f"{bench.experiment}-start")
    assert (core.code, "not for training" in core.err) == (2, True), core.err
