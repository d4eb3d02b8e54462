"""Improve: versions of a prompt from its worst verdicts, benched; the best is confirmed elsewhere."""

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from tipbench.errors import UsageError
from tipbench.improve.brief import Brief, Subject, read_findings, write_brief
from tipbench.improve.course import Course, Order, read_course
from tipbench.improve.deciding import Deciding
from tipbench.improve.desk import Stop
from tipbench.improve.proposing import Check, ModelProposer
from tipbench.improve.versions import (
    HASH_DIGITS,
    Proposal,
    Proposals,
    VersionFacts,
    check_proposals,
    name_version,
    refuse_proposals,
    version_write,
)
from tipbench.inert import make_inert_line
from tipbench.judging.handout import Request, seed_source
from tipbench.judging.phase import Judging
from tipbench.promotion.gate import Asked
from tipbench.records import Prompt, content_hash


@dataclass(frozen=True)
class Improving:
    """One improvement; all it knows is in the store. `export` writes a brief where nobody answers at once."""

    order: Order
    rounds: int
    deciding: Deciding
    export: Callable[[Brief], Stop]
    proposer: ModelProposer | None = None

    def take_versions(self, proposals: Proposals) -> list[str]:
        """Stores the versions that answer the brief of this or of the next round; gives all their names.

        Raises:
            UsageError: they answer another brief, or cannot be used; nothing was stored.
        """
        self._judging.tracking.ensure_experiment(self.order.experiment)
        course = self._read()
        if not course.is_over:
            brief = _find_brief(course, proposals.brief)
            known = {version.facts.hash for version in course.versions if version.facts.brief == brief.id}
            # Applied twice, or killed in the middle: what is stored is not stored again.
            new = [each for each in proposals.versions if content_hash(each.clean) not in known]
            self._store(course, new, brief, self.deciding.desk.judged_by)
        return [version.facts.name for version in self._read().versions]

    def advance(self) -> Stop:
        """Goes as far as it can: to missing lazy verdicts, to a brief that waits, or to the gate's answer."""
        while True:
            said, course = self._bench()
            if course.is_over:
                champion = f"{self.order.base.name} came out of {self.order.experiment!r} and is champion."
                return Stop(0, (champion, "To improve it further, take a new experiment."))
            if course.lacking:
                scenarios = {cell.facts.scenario for cell in course.lacking}
                request = Request(
                    self.deciding.desk.judged_by,
                    blocks=len(scenarios),
                    champion=self.order.arm(self.order.base),
                )
                return self.deciding.desk.ask(self.order.experiment, request).after(*said)
            if course.round >= self.rounds:
                return self._confirm(course).after(*said, *tell_course(course))
            brief = self._write_brief(course)
            if self.proposer is None:
                return self.export(brief).after(*said, *tell_course(course))
            proposals = self.proposer.propose(brief, check=self._checker(course))
            self._store(course, proposals, brief, self.proposer.name)

    @property
    def _judging(self) -> Judging:
        return self.deciding.desk.judging

    def _read(self) -> Course:
        registrar = self._judging.registrar(self.order.experiment)
        return read_course(self.order, registrar.experiment, self._judging.read(registrar, fresh=True))

    def _bench(self) -> tuple[tuple[str, ...], Course]:
        """The training scenarios with every version there is."""
        self._judging.tracking.ensure_experiment(self.order.experiment)
        course = self._read()
        if course.is_over:
            return (), course
        cells = self.order.cells(course.prompts, self.order.training)
        return self.deciding.bench(cells, self.order.experiment), self._read()

    def _write_brief(self, course: Course) -> Brief:
        registrar = self._judging.registrar(self.order.experiment)
        backlog = self._judging.read(registrar)
        parent = course.best
        subject = Subject(
            id=course.next_brief,
            round=course.round + 1,
            parent=parent,
            model=self.order.model.name,
            pack=self.order.pack,
            levels=course.levels,
            versions=course.versions,
        )
        found = read_findings(backlog, course.cells_of(parent), pack=self.order.pack, registrar=registrar)
        return write_brief(subject, found, rng=Random(seed_source(self._judging.stamps)()))

    def _checker(self, course: Course) -> Check:
        known = {prompt.hash for prompt in (*course.prompts, *self.order.pack.prompts)}
        return lambda proposals: check_proposals(proposals, pack=self.order.pack, known=known)

    def _store(self, course: Course, proposals: Sequence[Proposal], brief: Brief, proposer: str) -> None:
        refuse_proposals(self._checker(course)(proposals), source="what was proposed")
        judging = self._judging
        for proposal in proposals:
            text_hash = content_hash(proposal.clean)
            facts = VersionFacts(
                name=name_version(self.order.base.name, text_hash),
                hash=text_hash,
                parent=brief.parent.name,
                parent_hash=brief.parent.hash,
                round=brief.round,
                why=proposal.why.strip(),
                proposer=proposer,
                brief=brief.id,
            )
            blank = judging.stamps.blank(course.experiment)
            judging.tracking.deliver(version_write(facts, proposal.clean, write=blank))

    def _confirm(self, course: Course) -> Stop:
        """The best version against the base on scenarios that nobody has seen; then the gate."""
        order, winner = self.order, course.best
        if winner == order.base:
            said = f"No version is ahead of {order.base.name} on the training scenarios: nothing to confirm."
            return Stop(3, (said,))
        experiment = confirming_experiment(order, winner)
        said = self.deciding.bench(order.cells([order.base, winner], order.confirming), experiment)
        stop = self.deciding.decide(Asked(experiment, order.arm(winner)), promote=False)
        first = f"Confirming {winner.name} on {len(order.confirming)} other scenarios, in {experiment!r}."
        return stop.after(first, *said)


def _find_brief(course: Course, brief: str) -> Brief:
    """The brief of that id: the one that was answered last, or the one that is open.

    Raises:
        UsageError: it is neither.
    """
    for facts in (version.facts for version in course.versions):
        if facts.brief == brief and facts.round == course.round:
            parent = next(prompt for prompt in course.prompts if prompt.hash == facts.parent_hash)
            return Brief(brief, facts.round, parent)
    if brief != course.next_brief or course.lacking or not course.cells:
        raise UsageError(
            f"the versions answer brief {brief!r}, which is not the one that is open now",
            hint="Write a new brief with --export and answer that one.",
        )
    return Brief(brief, course.round + 1, course.best)


def confirming_experiment(order: Order, winner: Prompt) -> str:
    """Where a version is confirmed: an experiment of its own, so that the gate sees nothing else.

    Judges read this name, so it does not hold the prompt's.
    """
    return f"{order.experiment}-confirm-{winner.hash[:HASH_DIGITS]}"


def tell_course(course: Course) -> tuple[str, ...]:
    """Every prompt with its mean on the training scenarios, its parent, and why it exists."""
    levels, best = course.levels, course.best
    facts = {version.facts.name: version.facts for version in course.versions}
    lines = [f"On {len(course.order.training)} training scenarios, after round {course.round}:"]
    for prompt in sorted(course.prompts, key=lambda prompt: -levels.get(prompt.name, 0.0)):
        level = f"{levels[prompt.name]:6.2f}" if prompt.name in levels else "     –"
        found = facts.get(prompt.name)
        origin = f", from {found.parent}: {make_inert_line(found.why)}" if found else ", where it began"
        lines.append(f"  {level} {prompt.name}{' (best)' if prompt == best else ''}{origin}")
    return tuple(lines)


def ask_for_export(brief: Brief, *, file: str = "brief.md") -> Stop:
    """What is said where no file and no model was named."""
    said = (
        f"New versions of {brief.parent.name} are needed, for round {brief.round}. Write the brief for them:"
    )
    return Stop(4, (said,), go_on=("--export", file))


def say_exported(brief: Brief, path: str) -> Stop:
    """What is said when the brief was written."""
    said = (
        f"The brief for round {brief.round} is in {shlex.quote(path)}: let a coding agent answer it.",
        "It writes versions.json. Then go on:",
    )
    return Stop(4, said, go_on=("--apply", "versions.json"))
