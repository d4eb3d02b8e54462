"""Lazy verdicts on their way: what is missing is handed out once, and taken in when the file is filled."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from glob import escape
from itertools import count
from pathlib import Path

from tipbench.errors import JudgedEnough, NewerSchema, SheetError
from tipbench.judging.answers import read_sheet
from tipbench.judging.export import part_file, schema_file
from tipbench.judging.handout import Request
from tipbench.judging.phase import Judging
from tipbench.judging.sheet import Sheet
from tipbench.judging.status import SittingLine
from tipbench.promotion.promote import Outcome
from tipbench.ranking.records import Report


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
class Desk:
    """Where lazy verdicts come from. Files are called after `sheet`, numbered where it is taken."""

    judging: Judging
    judged_by: str
    sheet: Path

    def take_in(self, experiment: str) -> tuple[str, ...]:
        """Takes in what was filled of the sheets that are out, and closes what ran out; says what it took.

        Raises:
            SheetError: names every problem of a sheet by item.
        """
        with self.judging.locked(experiment) as registrar:
            self.judging.read_tidy(registrar)
        said: list[str] = []
        for path, sheet in self._sheets(experiment, self._open(experiment)):
            if any(s is not None for part in sheet.sections for i in part.items for s in i.scores.values()):
                taken = self.judging.take_in(path, experiment=experiment, judged_by=None, close=False)
                said += [
                    f"{path}: {part.answered} of {part.items} answered, sitting {part.sitting} {part.outcome}"
                    for part in taken.sections
                ]
        return tuple(said)

    def ask(self, experiment: str, request: Request) -> Stop:
        """Hands out what is asked for, unless a judge has something already; either way it is waited for.

        Raises:
            JudgingClosed: a person ended judging of the experiment.
        """
        waiting = self._open(experiment)
        path = self._free_file()
        # What was killed while it was handed out is with nobody yet: its file is put in place first.
        if waiting and not part_file(path).exists():
            return Stop(4, self._say_waiting(experiment, waiting), go_on=())
        try:
            handout = self.judging.hand_out(path, request, experiment=experiment)
        except JudgedEnough:
            # The gate plans with so many verdicts all the same.
            anything = Request(request.judged_by, items=request.items, at_random=True)
            handout = self.judging.hand_out(path, anything, experiment=experiment)
        if handout is None:
            return Stop(4, (f"no candidate of {experiment!r} can be handed to a lazy judge",))
        items = sum(len(section.items) for section in handout.sheet.sections)
        said = (
            *(f"· {remark}" for remark in handout.remarks),
            f"Lazy verdicts are needed: {items} items of experiment {experiment!r} are in {path}.",
            "Fill in their scores, each with a reason. Then go on:",
        )
        return Stop(4, said, go_on=())

    def _open(self, experiment: str) -> list[SittingLine]:
        """What is with a lazy judge now."""
        found = self.judging.status(experiment=experiment).sittings
        return [line for line in found if line.state == "open" and line.drawn == "block"]

    def _say_waiting(self, experiment: str, waiting: list[SittingLine]) -> tuple[str, ...]:
        files = [str(path) for path, _ in self._sheets(experiment, waiting)]
        where = f" in {', '.join(files)}" if files else ""
        sittings = ", ".join(f"{line.sitting} by {line.judged_by}" for line in waiting)
        return (
            f"Lazy verdicts of {experiment!r} are still missing{where}: sitting {sittings}.",
            "Fill in their scores, or give a lost file back (tipbench judge release). Then go on:",
        )

    def _sheets(self, experiment: str, waiting: list[SittingLine]) -> Iterator[tuple[Path, Sheet]]:
        """The files here that hold sittings which are open."""
        tokens = {line.sitting for line in waiting}
        pattern = f"{escape(self.sheet.stem)}*{escape(self.sheet.suffix)}"
        for path in sorted(self.sheet.absolute().parent.glob(pattern)) if tokens else ():
            try:
                sheet = read_sheet(path)
            except (SheetError, NewerSchema):
                continue  # Some other file of a similar name.
            if sheet.experiment == experiment and tokens & {part.sitting for part in sheet.sections}:
                yield self.sheet.with_name(path.name), sheet

    def _free_file(self) -> Path:
        """The first name that is not taken; that of an interrupted export is."""
        for n in count(1):
            number = f"-{n}" if n > 1 else ""
            path = self.sheet.with_name(f"{self.sheet.stem}{number}{self.sheet.suffix}")
            if not path.exists() and (part_file(path).exists() or not schema_file(path).exists()):
                return path
        raise AssertionError("never")
