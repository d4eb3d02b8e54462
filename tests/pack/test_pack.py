"""Reading, checking, rendering and starting packs."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from tipbench.cli.pack import command
from tipbench.errors import PackError, UsageError
from tipbench.pack import (
    answer_tokens,
    builtin_pack,
    check_folder,
    examine,
    parse_pack,
    read_pack,
    render_prompt,
    seal_pack,
    select_scenarios,
    start_pack,
    unseal_pack,
)
from tipbench.pack.reading import Reference, seal, unseal
from tipbench.records import Options, Pack, Prompt, Sampling, Scenario, content_hash


def test_a_new_pack_works_as_it_is(folder: Path) -> None:
    pack, found = check_folder(folder)
    assert pack is not None
    assert found.mistakes == []
    assert pack.name == "mine"
    assert [scale.name for scale in pack.rubric.scales] == ["accuracy", "appeal"]
    assert (pack.rubric.lowest, pack.rubric.highest) == (-2, 10)
    assert pack.scenarios[-1].held_out


def test_a_pack_read_back_from_its_texts_is_the_same(folder: Path) -> None:
    pack = read_pack(folder)
    assert parse_pack(pack.files) == pack
    assert parse_pack(pack.files).hash == pack.hash


def test_line_ends_and_byte_order_marks_change_nothing(folder: Path) -> None:
    before = read_pack(folder).hash
    for file in folder.rglob("*.*"):
        file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes().replace(b"\n", b"\r\n"))
    assert read_pack(folder).hash == before


def test_hidden_files_and_notes_are_no_part_of_the_pack(folder: Path) -> None:
    before = read_pack(folder).hash
    (folder / "prompts" / ".DS_Store").write_bytes(b"\xff")
    (folder / "notes.txt").write_text("mine")
    assert read_pack(folder).hash == before


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(PackError, match="no folder"):
        read_pack(tmp_path / "nothing")


def test_a_pack_without_anchors_is_sound_with_a_remark(files: dict[str, str]) -> None:
    del files["anchors.jsonl"]
    pack, found = examine(files)
    assert pack is not None
    assert [str(remark) for remark in found.remarks] == [
        "anchors.jsonl:1: no anchors: nobody will see how far a judge drifts"
    ]


def test_sealing_changes_nothing_but_the_looks_of_the_anchors(folder: Path) -> None:
    before = read_pack(folder)
    assert seal_pack(folder) == 4
    after = read_pack(folder)
    assert after.anchors == before.anchors
    assert 'scores":' not in after.files["anchors.jsonl"]
    assert after.files["anchors.jsonl"].startswith("# Candidates with known scores")
    assert seal_pack(folder) == 0
    assert read_pack(folder) == after


def test_what_was_sealed_comes_back_in_plain_text(folder: Path) -> None:
    path, before = folder / "anchors.jsonl", read_pack(folder)
    plain = path.read_text()
    seal_pack(folder)
    sealed = path.read_text()
    assert unseal_pack(folder) == 4
    assert path.read_text() == plain, "comments, order and reasons, as the author wrote them"
    assert (read_pack(folder), unseal_pack(folder)) == (before, 0)
    seal_pack(folder)
    assert path.read_text() == sealed


def test_a_broken_pack_is_not_sealed(folder: Path) -> None:
    text = (folder / "anchors.jsonl").read_text().replace('"accuracy": 3', '"accuracy": 9')
    (folder / "anchors.jsonl").write_text(text)
    with pytest.raises(PackError, match="accuracy is 9"):
        seal_pack(folder)
    assert (folder / "anchors.jsonl").read_text() == text


def test_a_sealed_reference_comes_back_and_a_bomb_does_not() -> None:
    reference = Reference(scores={"tone": 3}, reason="plain – café")
    assert unseal(seal(reference)) == reference
    with pytest.raises(ValueError, match="broken"):
        unseal(seal(Reference(scores={}, reason="x" * 1_000_000)))


def make_prompt_pack(
    template: str, values: dict[str, str | tuple[str, ...]]
) -> tuple[Pack, Prompt, Scenario]:
    pack = builtin_pack()
    return pack, Prompt(name="p", text=template), Scenario(id="s", set="core", values=values)


def test_a_prompt_is_filled_in_one_pass() -> None:
    pack, prompt, scenario = make_prompt_pack(
        "{{a}} and {{ b }}:\n{{list}}\n{{n_tips}}",
        {"a": "{{b}} {{n_tips}} \\1", "b": "x", "list": ("one", "two")},
    )
    chat = render_prompt(pack, prompt, scenario, options=three(diversity=False))
    assert chat.text == "{{b}} {{n_tips}} \\1 and x:\n- one\n- two\n3"


def test_the_diversity_line_is_there_or_vanishes() -> None:
    pack, prompt, scenario = make_prompt_pack("{{a}}\n  {{diversity}}\n{{n_tips}}\n{{diversity}}", {"a": "x"})
    request = pack.diversity_request
    with_request = render_prompt(pack, prompt, scenario, options=three(diversity=True))
    assert with_request.text == f"x\n  {request}\n3\n{request}"
    assert render_prompt(pack, prompt, scenario, options=three(diversity=False)).text == "x\n3"


def three(*, diversity: bool) -> Options:
    return Options(sampling=Sampling(), n_tips=3, diversity=diversity, seed=0)


def test_an_unknown_set_and_a_negative_cap_are_usage_errors() -> None:
    pack = builtin_pack()
    with pytest.raises(UsageError, match="unknown scenario set 'cor'") as caught:
        select_scenarios(pack, "cor", 0)
    assert caught.value.hint == "Available: core, wide, all"
    with pytest.raises(UsageError, match="n-scenarios is -1"):
        select_scenarios(pack, "core", -1)


def test_the_token_budget_grows_with_the_number_of_tips() -> None:
    pack = builtin_pack()
    assert answer_tokens(pack, n_tips=1) == answer_tokens(pack, n_tips=5) == pack.max_tokens
    assert answer_tokens(pack, n_tips=50) == 10 * pack.max_tokens


def test_a_new_pack_is_written_only_into_an_empty_folder(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("precious")
    with pytest.raises(UsageError, match="is not an empty folder"):
        start_pack(tmp_path)
    with pytest.raises(UsageError, match="is not an empty folder"):
        start_pack(tmp_path / "mine")
    assert (tmp_path / "mine").read_text() == "precious"
    (tmp_path / "Größe 1").mkdir()
    start_pack(tmp_path / "Größe 1")
    assert read_pack(tmp_path / "Größe 1").name == "gr-e-1"


def test_a_folder_that_cannot_be_made_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot write into"):
        start_pack(tmp_path / "file" / "mine")


def test_pack_check_prints_a_summary_or_every_mistake(tmp_path: Path) -> None:
    runner = CliRunner()
    folder = str(tmp_path / "p")
    assert runner.invoke(command, ["new", folder], catch_exceptions=False).exit_code == 0
    sound = runner.invoke(command, ["check", folder], catch_exceptions=False)
    assert sound.exit_code == 0
    assert sound.output.count("in plain text") == 1, "one remark for all of them"
    assert "anchors.jsonl:3: 4 anchors are in plain text ('a1' to 'a4')" in sound.output
    assert "pack 'p' is sound" in sound.output
    assert runner.invoke(command, ["seal", folder], catch_exceptions=False).output.startswith(
        "4 anchors sealed"
    )
    back = runner.invoke(command, ["unseal", folder], catch_exceptions=False).output
    assert back.startswith("4 anchors in plain text")
    assert f"tipbench pack seal {folder}" in back
    (tmp_path / "p" / "pack.toml").write_text("schema = 1\nname = \n")
    broken = runner.invoke(command, ["check", folder], catch_exceptions=False)
    assert broken.exit_code == 2
    assert broken.output.startswith("pack.toml:2: not TOML")


def test_a_pack_says_which_flag_means_well_formed(folder: Path) -> None:
    starter = read_pack(folder)
    assert starter.format_flag == "short"
    text = starter.files["pack.toml"]
    unnamed = parse_pack(starter.files | {"pack.toml": text.replace('well_formed = "short"\n', "")})
    assert unnamed.format_flag is None
    wrong = text.replace('well_formed = "short"', 'well_formed = "tidy"')
    pack, found = examine(starter.files | {"pack.toml": wrong})
    line = wrong[: wrong.index("well_formed")].count("\n") + 1
    assert (pack, [(m.file, m.line) for m in found.mistakes]) == (None, [("pack.toml", line)])
    assert "'tidy', which is no flag: there are short, shouting" in str(found.mistakes[0])


def test_the_built_in_pack_means_format_ok_and_its_content_is_what_it_was() -> None:
    pack = builtin_pack()
    # Prompts of 2026-11-18 that were added to it; rubric and anchors were revised on purpose on 2026-11-19.
    added = ("prompts/v4-json.md", "prompts/v5-chat.md")
    kept = {name: text for name, text in pack.files.items() if name not in added}
    assert (pack.format_flag, content_hash(kept), pack.rubric.hash) == (
        "format_ok",
        "8f32acd87898ba14",
        "0b8ce8126685a8fd",
    )
