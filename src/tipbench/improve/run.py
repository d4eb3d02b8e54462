"""Improve: versions of a prompt from its worst verdicts, benched; the best is confirmed elsewhere."""

import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from glob import escape
from pathlib import Path
from random import Random

from tipbench.bench.blindness import CONFIRMING
from tipbench.bench.versions import (
    HASH_DIGITS,
    Proposal,
    Proposals,
    VersionFacts,
    check_proposals,
    name_version,
    refuse_proposals,
    version_write,
)
from tipbench.collect.run import plan_collect
from tipbench.errors import JudgedEnough, NewerSchema, NoChampion, SheetError, TipbenchError, UsageError
from tipbench.grid import Cell
from tipbench.improve.brief import (
    Brief,
    Check,
    ModelProposer,
    Subject,
    find_copies,
    read_findings,
    read_seen,
    write_brief,
)
from tipbench.improve.state import Course, Order, explain_lack, read_course
from tipbench.inert import make_inert_line
from tipbench.judging.agent import AgentOutcome
from tipbench.judging.handout import seed_source
from tipbench.judging.records import SittingLine
from tipbench.judging.request import SittingRequest
from tipbench.judging.service import Judging
from tipbench.judging.sheet import Sheet, free_sheet, part_file, read_sheet, split_number
from tipbench.promotion.gate import GateQuestion
from tipbench.promotion.promote import Outcome, Promoting
from tipbench.promotion.rules import GateReport
from tipbench.ranking.compare import compare_bench
from tipbench.ranking.records import Report
from tipbench.records import Prompt, content_hash
from tipbench.tracking.runs import blank_write

# Lazy verdicts on their way: what is missing is handed out once, and taken in when the file is filled.


@dataclass(frozen=True)
class Stop:
    """Where a command ends. `go_on` are the options to add to it when it can go on later.

    `outcome` is what the gate said, `board` what is known where there is no champion to beat: they are shown
    between what was said `first` and the rest.
    """

    exit_code: int
    said: tuple[str, ...] = ()
    first: tuple[str, ...] = ()
    go_on: tuple[str, ...] | None = None
    outcome: Outcome | None = None
    board: Report | None = None

    def after(self, *lines: str) -> "Stop":
        """The same, with these lines before it."""
        return replace(self, first=(*lines, *self.first))


@dataclass(frozen=True)
class LazyJudging:
    """Where lazy verdicts come from: an `agent` that judges at once, told the experiment; else files.

    Files are called after `sheet`, numbered where it is taken; the command that goes on names the last one.
    """

    judging: Judging
    judged_by: str
    sheet: Path
    agent: Callable[[str], AgentOutcome | None] | None = None

    def take_in(self, experiment: str) -> tuple[str, ...]:
        """Takes in what was filled of the sheets that are out, and closes what ran out; says what it took.

        Raises:
            SheetError: names every problem of a sheet by item.
        """
        self.judging.tidy(experiment)
        said: list[str] = []
        for path, sheet in self._sheets(experiment, self._open(experiment)):
            if any(s is not None for part in sheet.sections for i in part.items for s in i.scores.values()):
                taken = self.judging.take_in(path, experiment=experiment, judged_by=None, close=False)
                said += [
                    f"{path}: {part.answered} of {part.items} answered, sitting {part.sitting} {part.outcome}"
                    for part in taken.sections
                ]
        return tuple(said)

    def ask(self, experiment: str, request: SittingRequest) -> Stop | None:
        """Lets the agent judge: None when there are new verdicts. Without one it hands out what is asked for,
        unless a judge has something already; either way it is waited for.

        Raises:
            JudgingClosed: a person ended judging of the experiment.
        """
        if self.agent is not None:
            outcome = self.agent(experiment)
            if outcome is not None and outcome.judged:
                return None
            said = f"Verdicts on {experiment!r} are needed, and the agent gave none that counts."
            return Stop(
                4, (said, "Read what it said, or judge yourself (--sheet FILE). Then go on:"), go_on=()
            )
        return self._hand_out(experiment, request)

    def _hand_out(self, experiment: str, request: SittingRequest) -> Stop:
        waiting = self._open(experiment)
        path = free_sheet(self.sheet)
        # What was killed while it was handed out is with nobody yet: its file is put in place first.
        if waiting and not part_file(path).exists():
            return self._wait(experiment, waiting)
        try:
            handout = self.judging.hand_out(path, request, experiment=experiment)
        except JudgedEnough:
            # The gate plans with so many verdicts all the same.
            anything = SittingRequest(request.judged_by, items=request.items, at_random=True)
            handout = self.judging.hand_out(path, anything, experiment=experiment)
        if handout is None:
            return Stop(4, (f"no candidate of {experiment!r} can be handed out to be judged",))
        items = sum(len(section.items) for section in handout.sheet.sections)
        said = (
            *(f"· {remark}" for remark in handout.remarks),
            f"Verdicts are needed: {items} items of experiment {experiment!r} are in {path}.",
            "Fill in their scores, each with a reason. Then go on:",
        )
        return Stop(4, said, go_on=self._go_on(path))

    def _go_on(self, sheet: Path) -> tuple[str, ...]:
        """The option that names the file, where the command did not."""
        return () if sheet == self.sheet else ("--sheet", str(sheet))

    def _open(self, experiment: str) -> list[SittingLine]:
        """What is with a lazy judge now."""
        found = self.judging.status(experiment=experiment).sittings
        return [line for line in found if line.state == "open" and line.drawn == "block"]

    def _wait(self, experiment: str, waiting: list[SittingLine]) -> Stop:
        files = [path for path, _ in self._sheets(experiment, waiting)]
        where = f" in {', '.join(map(str, files))}" if files else ""
        sittings = ", ".join(f"{line.sitting} by {line.judged_by}" for line in waiting)
        said = (
            f"Verdicts on {experiment!r} are still missing{where}: sitting {sittings}.",
            "Fill in their scores, or give a lost file back (tipbench judge release). Then go on:",
        )
        return Stop(4, said, go_on=self._go_on(files[-1] if files else self.sheet))

    def _sheets(self, experiment: str, waiting: list[SittingLine]) -> Iterator[tuple[Path, Sheet]]:
        """The files here that hold sittings which are open."""
        tokens = {line.sitting for line in waiting}
        pattern = f"{escape(split_number(self.sheet)[0])}*{escape(self.sheet.suffix)}"
        for path in sorted(self.sheet.absolute().parent.glob(pattern)) if tokens else ():
            try:
                sheet = read_sheet(path)
            except (SheetError, NewerSchema):
                continue  # Some other file of a similar name.
            if sheet.experiment == experiment and tokens & {part.sitting for part in sheet.sections}:
                yield self.sheet.with_name(path.name), sheet


# From collected cells to the gate's answer: runs until lazy verdicts are needed, and goes on from there.


ITEMS_AT_ONCE = 40
"""How much is handed out at a time where no gate says how much it needs."""


@dataclass(frozen=True)
class BenchSteps:
    """What needs an engine: generating the cells of an experiment, and letting a model judge them."""

    collect: Callable[[Sequence[Cell], str], None]
    judge_auto: Callable[[str], None]


@dataclass(frozen=True)
class Deciding:
    """Experiments on their way to a decision."""

    promoting: Promoting
    lazy: LazyJudging
    hands: BenchSteps

    def bench(self, cells: Sequence[Cell], experiment: str) -> tuple[str, ...]:
        """Generates what is missing, lets the model judge, takes in filled sheets; says what it took."""
        tracking = self.promoting.gate.tracking
        stored = tracking.ensure_experiment(experiment)
        if plan_collect(cells, tracking=tracking, experiment=stored, reuse_from=None).missing:
            self.hands.collect(cells, experiment)
        self.hands.judge_auto(experiment)
        return self.lazy.take_in(experiment)

    def decide(self, asked: GateQuestion, *, promote: bool) -> Stop:
        """What the gate says, with the promotion if it is wanted; or what it waits for."""
        while True:
            stop = self._decide_now(asked, promote=promote)
            if stop is not None:
                return stop

    def _decide_now(self, asked: GateQuestion, *, promote: bool) -> Stop | None:
        """The same; None when there are new verdicts to decide with."""
        try:
            outcome = self._ask(asked, promote=promote)
        except NoChampion:
            return self._decide_first(asked)
        report = outcome.gate
        if outcome.outcome != "refused" or report is None or report.answer != "undecided":
            return Stop(outcome.exit_code, _say_next(outcome, asked), outcome=outcome)
        look = report.next_look
        if look is None or not look.missing:
            return Stop(4, _say_missing_tier(report), go_on=(), outcome=outcome)
        if look.remark:
            return Stop(3, (f"{report.champion} stays champion: {look.remark}.",), outcome=outcome)
        stop = self.lazy.ask(asked.experiment, SittingRequest(self.lazy.judged_by, items=look.missing))
        return None if stop is None else replace(stop, outcome=outcome)

    def _ask(self, asked: GateQuestion, *, promote: bool) -> Outcome:
        if promote:
            return self.promoting.promote(asked)
        return Outcome(outcome="refused", gate=self.promoting.gate.ask(asked))

    def _decide_first(self, asked: GateQuestion) -> Stop | None:
        """Without a champion there is no gate: the leaderboard, and a person's word."""
        name = asked.experiment
        board = compare_bench(self.promoting.gate.read(name), "arm")
        if board.winner is None and board.waiting:
            stop = self.lazy.ask(name, SittingRequest(self.lazy.judged_by, items=ITEMS_AT_ONCE))
            return None if stop is None else replace(stop, board=board)
        if board.winner is None or asked.challenger not in {None, board.winner}:
            return Stop(board.exit_code or 3, board=board)
        said = (
            "There is no champion yet, so there is no gate. A person names the first one:",
            f"  tipbench promote --experiment {shlex.quote(name)} --initial {shlex.quote(board.winner)} "
            "--reason …",
        )
        return Stop(0, said, board=board)


def _say_next(outcome: Outcome, asked: GateQuestion) -> tuple[str, ...]:
    if outcome.outcome != "refused" or outcome.gate is None or outcome.gate.promoted is None:
        return ()
    challenger = f" --challenger {shlex.quote(asked.challenger)}" if asked.challenger else ""
    return (
        "To make it champion:",
        f"  tipbench promote --experiment {shlex.quote(asked.experiment)}{challenger}",
    )


def _say_missing_tier(report: GateReport) -> tuple[str, ...]:
    failed = [rule for rule in report.rules if not rule.passed]
    if [rule.name for rule in failed] == ["auto tier"]:
        return (
            f"Blocked: no automatic judge, and this plan was made with gate.require = {report.require!r}.",
            "Name one (--judge-model, or judge_model in tipbench.toml), then:",
        )
    return (
        f"Blocked: {', '.join(rule.label for rule in failed) or 'see above'}. When that is mended, go on:",
    )


@dataclass(frozen=True)
class Improving:
    """One improvement; all it knows is in the store. `export` writes a brief where nobody answers at once."""

    order: Order
    rounds: int
    deciding: Deciding
    export: Callable[[Brief], Stop]
    proposer: ModelProposer | None = None
    promote: bool = False
    """Whether what the gate lets pass becomes champion at once."""

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
            self._store(course, new, brief, self.deciding.lazy.judged_by)
        return [version.facts.name for version in self._read().versions]

    def advance(self) -> Stop:
        """Goes as far as it can: to missing lazy verdicts, to a brief that waits, or to the gate's answer."""
        while True:
            said, course = self._bench()
            if course.is_over:
                champion = f"{self.order.base.name} came out of {self.order.experiment!r} and is champion."
                return Stop(0, (champion, "To improve it further, take a new experiment."))
            if course.lacking:
                stop = self._ask_lazily(course)
                if stop is None:
                    continue
                return stop.after(*said)
            if course.round >= self.rounds:
                return self._confirm(course).after(*said, *tell_course(course))
            brief = self._write_brief(course)
            if self.proposer is None:
                return self.export(brief).after(*said, *tell_course(course))
            proposals = self.proposer.propose(brief, check=self._checker(course))
            self._store(course, proposals, brief, self.proposer.name)

    def _ask_lazily(self, course: Course) -> Stop | None:
        scenarios = {cell.facts.scenario for cell in course.lacking}
        request = SittingRequest(
            self.deciding.lazy.judged_by,
            blocks=len(scenarios),
            champion=self.order.arm(self.order.base),
        )
        return self.deciding.lazy.ask(self.order.experiment, request)

    @property
    def _judging(self) -> Judging:
        return self.deciding.lazy.judging

    def _read(self) -> Course:
        return read_course(self.order, self._judging.open(self.order.experiment, fresh=True))

    def _bench(self) -> tuple[tuple[str, ...], Course]:
        """The training scenarios with every version there is."""
        self._judging.tracking.ensure_experiment(self.order.experiment)
        course = self._read()
        if course.is_over:
            return (), course
        cells = self.order.cells(course.prompts, self.order.training)
        if self.order.train_on == "auto" and not course.levels:
            # One cell is enough to be asked the anchors: who fails there is known before the rest is made.
            self.deciding.bench(cells[:1], self.order.experiment)
            self._check_auto(self._read())
        said = self.deciding.bench(cells, self.order.experiment)
        course = self._read()
        if self.order.train_on == "auto":
            self._check_auto(course)
        return (*said, *(f"· damaged, not counted: {each}" for each in course.damaged)), course

    def _check_auto(self, course: Course) -> None:
        """Refuses to choose by a judge that did not judge.

        Raises:
            TipbenchError: says what its anchors showed.
        """
        if course.lacking:
            raise TipbenchError(
                f"--train-on auto cannot choose: {explain_lack(self._judging.open(self.order.experiment))}",
                hint="Name another judge (--judge-model), or train on verdicts of people and agents "
                "(--train-on lazy).",
            )

    def _write_brief(self, course: Course) -> Brief:
        bench = self._judging.open(self.order.experiment)
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
        found = read_findings(bench, course.cells_of(parent), pack=self.order.pack)
        return write_brief(subject, found, rng=Random(seed_source(self._judging.stamps)()))

    def _checker(self, course: Course) -> Check:
        order, prompts = self.order, (*course.prompts, *self.order.pack.prompts)
        known, own = {prompt.hash for prompt in prompts}, [prompt.text for prompt in prompts]
        seen = read_seen(self._judging.open(order.experiment), course.cells, order.training)
        return lambda proposals: [
            *check_proposals(proposals, pack=order.pack, known=known, base=order.base),
            *find_copies(proposals, seen=seen, own=own),
        ]

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
            blank = blank_write(course.experiment, judging.stamps)
            judging.tracking.deliver(version_write(facts, proposal.clean, write=blank))

    def _confirm(self, course: Course) -> Stop:
        """The best version against the base on scenarios that nobody has seen; then the gate."""
        order, winner = self.order, course.best
        if winner == order.base:
            said = f"No version is ahead of {order.base.name} on the training scenarios: nothing to confirm."
            return Stop(3, (said,))
        experiment = confirming_experiment(order, winner)
        said = self.deciding.bench(order.cells([order.base, winner], order.confirming), experiment)
        stop = self.deciding.decide(GateQuestion(experiment, order.arm(winner)), promote=self.promote)
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
    return f"{order.experiment}{CONFIRMING}{winner.hash[:HASH_DIGITS]}"


def tell_course(course: Course) -> tuple[str, ...]:
    """Every prompt with its mean on the training scenarios, its parent, and why it exists."""
    levels, best = course.levels, course.best
    facts = {version.facts.name: version.facts for version in course.versions}
    tier = ", by the automatic judge" if course.order.train_on == "auto" else ""
    lines = [f"On {len(course.order.training)} training scenarios, after round {course.round}{tier}:"]
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
