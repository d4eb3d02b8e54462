"""The list of seeded defects: code and tests move, and a defect whose text is gone proves nothing."""

from pathlib import Path

from tests.mutants import ROOT, read_mutants


def test_the_text_of_every_seeded_defect_is_in_the_code_once() -> None:
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py")]
    named = {mutant.file: (ROOT / mutant.file) for mutant in read_mutants()}
    stale = [
        mutant.id
        for mutant in read_mutants()
        if sum(text.count(mutant.find) for text in texts) != 1
        and (not named[mutant.file].exists() or named[mutant.file].read_text().count(mutant.find) != 1)
    ]
    assert not stale, "move them with their code, in tests/mutants.toml"


def test_every_seeded_defect_names_a_test_that_there_is_or_why_there_is_none() -> None:
    missing: list[str] = []
    for mutant in read_mutants():
        file, _, name = mutant.found_by.partition("::")
        path = Path(ROOT / file)
        there = bool(file) and path.is_file() and f"def {name.partition('[')[0]}(" in path.read_text("utf-8")
        if not there and not mutant.escapes:
            missing.append(f"{mutant.id}: {mutant.found_by}")
    assert not missing
