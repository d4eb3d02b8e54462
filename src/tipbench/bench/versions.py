"""Prompt versions in MLflow: one run each, with the text, the parent, and why it exists."""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from pydantic import Field

from tipbench.bench.damage import FACTS_TAG, Damage, PassOver, find_readable, ignore, read_each, read_tag
from tipbench.errors import UsageError
from tipbench.pack import examine, parse_pack, read_parts
from tipbench.pack.check import ALWAYS, PLACEHOLDER
from tipbench.records import SCHEMA, Pack, Prompt, Record, content_hash
from tipbench.tracking import Run, Write
from tipbench.tracking.runs import clean_text

KIND = "version"
TEXT_FILE = "prompt.md"
MOST_VERSIONS = 8
MOST_CHARACTERS = 20_000
MOST_WHY = 2_000
ROOT_CHARACTERS = 50
HASH_DIGITS = 6
_MADE_NAME = re.compile(r"-[0-9a-f]{6}$")


class Proposal(Record):
    """A new text for the prompt, and which weakness it removes."""

    why: str = Field(min_length=1, max_length=MOST_WHY)
    text: str = Field(min_length=1, max_length=MOST_CHARACTERS)

    @property
    def clean(self) -> str:
        """The text as a file of a pack holds it."""
        return clean_text(self.text.replace("\r\n", "\n")).strip() + "\n"


class Proposals(Record):
    """What a writer answers to a brief."""

    brief: str
    versions: tuple[Proposal, ...] = Field(min_length=1, max_length=MOST_VERSIONS)


class VersionFacts(Record):
    """Where a version comes from. `brief` names the brief that its proposer answered."""

    name: str
    hash: str
    parent: str
    parent_hash: str
    round: int
    why: str
    proposer: str
    brief: str


@dataclass(frozen=True)
class StoredVersion:
    """A version as MLflow has it."""

    run: Run
    facts: VersionFacts
    prompt: Prompt


def name_version(base: str, text_hash: str) -> str:
    """A name that the same text always gets; of a version's own name only the beginning is kept."""
    root = _MADE_NAME.sub("", base)[:ROOT_CHARACTERS]
    return f"{root}-{text_hash[:HASH_DIGITS]}"


def add_prompts(pack: Pack, prompts: Iterable[Prompt]) -> Pack:
    """The pack with these prompts too: what is benched is stored with its texts.

    Raises:
        PackError: a prompt asks for what the scenarios do not have.
    """
    return parse_pack({**pack.files, **{f"prompts/{prompt.name}.md": prompt.text for prompt in prompts}})


def check_proposals(
    proposals: Sequence[Proposal], *, pack: Pack, known: Collection[str], base: Prompt | None = None
) -> list[str]:
    """Everything that is wrong with them; `known` are the hashes of texts that were benched before.

    `base` is what they are versions of: they keep its form, its turns and its placeholders.
    """
    problems: list[str] = []
    seen = set(known)
    for place, proposal in enumerate(proposals, start=1):
        text_hash = content_hash(proposal.clean)
        file = f"prompts/version-{place}.md"
        found = examine({**pack.files, file: proposal.clean})[1]
        # What the prompts of the pack do on purpose is no slip of a version.
        usual = {remark.what for remark in found.remarks if remark.file != file}
        problems += [
            f"version {place}, line {each.line}: {each.what}"
            for each in (*found.mistakes, *found.remarks)
            if each.file == file and each.what not in usual
        ]
        if base is not None:
            problems += [f"version {place}: {what}" for what in _find_losses(proposal.clean, base.text)]
        if not proposal.why.strip():
            problems.append(f"version {place}: say why it exists")
        if text_hash in seen:
            problems.append(f"version {place}: its text is not new")
        seen.add(text_hash)
    return problems


def _find_losses(text: str, base: str) -> Iterator[str]:
    """What a version must have of the prompt it comes from, or it is not known what helped."""
    mine, theirs = read_parts(text), read_parts(base)
    if mine.form != theirs.form:
        yield f"its form is {mine.form!r}, that of the prompt is {theirs.form!r}: keep the front matter"
    if mine.roles != theirs.roles:
        kept = ", ".join(theirs.roles)
        yield f"its turns are {', '.join(mine.roles) or 'none'}: keep those of the prompt ({kept})"
    lost = sorted(set(PLACEHOLDER.findall(base)) - set(PLACEHOLDER.findall(text)) - set(ALWAYS))
    if lost:
        yield f"it lost {', '.join(f'{{{{{name}}}}}' for name in lost)}: put it where it belongs"


def refuse_proposals(problems: Sequence[str], *, source: str) -> None:
    """Refuses proposals that have problems.

    Raises:
        UsageError: with all of them.
    """
    if problems:
        raise UsageError(
            f"{source}: rejected, nothing saved:\n  " + "\n  ".join(problems),
            hint="Correct these versions and apply the file again.",
        )


def version_write(facts: VersionFacts, text: str, *, write: Write) -> Write:
    """The run of a version; MLflow shows the reason as its description."""
    note = f"**Why:** {facts.why}\n\n**Parent:** {facts.parent} · **round** {facts.round}"
    return write.model_copy(
        update={
            "run_name": f"prompt {facts.name} (from {facts.parent})"[:250],
            "tags_at_create": {
                "tipbench.kind": KIND,
                "tipbench.schema": str(SCHEMA),
                "tipbench.state": "open",
            },
            "artifacts": {TEXT_FILE: text},
            "params": {
                "prompt": facts.name,
                "parent": facts.parent,
                "round": str(facts.round),
                "proposer": facts.proposer[:5_000],
            },
            "tags": {
                "tipbench.facts": facts.model_dump_json(),
                "mlflow.note.content": note,
                "tipbench.state": "complete",
            },
            "end_time": write.start_time,
        }
    )


def read_versions(
    runs: Iterable[Run], *, read_text: Callable[[Run, str], str], pass_over: PassOver = ignore
) -> tuple[StoredVersion, ...]:
    """All versions of an experiment, oldest first, each text once."""

    def read(run: Run) -> StoredVersion:
        facts = read_tag(run, FACTS_TAG, VersionFacts)
        prompt = Prompt(name=facts.name, text=read_text(run, TEXT_FILE))
        if prompt.hash != facts.hash:
            raise Damage(run, TEXT_FILE, f"the text of version {facts.name!r} was edited")
        return StoredVersion(run, facts, prompt)

    found: dict[str, StoredVersion] = {}
    for version in read_each(_complete(runs), read, pass_over):
        found.setdefault(version.facts.hash, version)
    return tuple(found.values())


def check_versions(runs: Iterable[Run], pass_over: PassOver) -> None:
    """Says which versions cannot be read; of those that can the text is not looked at."""
    read_each(_complete(runs), lambda run: read_tag(run, FACTS_TAG, VersionFacts), pass_over)


def _complete(runs: Iterable[Run]) -> list[Run]:
    found = [run for run in find_readable(runs, KIND) if run.tags["tipbench.state"] == "complete"]
    return sorted(found, key=lambda run: (run.start_time, run.first_id))
