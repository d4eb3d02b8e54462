"""The phases, built once for everybody: command line, panel, MCP, jobs and demo.

Nothing else constructs a phase, so that a setting cannot be forgotten at one of several doors. What a phase
imports is loaded when it is asked for: a collect does not wait for the statistics of the gate.
"""

import os
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

from tipbench.clock import Stamps, make_stamps
from tipbench.errors import ExperimentNotFound, UsageError
from tipbench.records import Pack
from tipbench.settings import ADMIN_DATABASE, COMMAND, Settings
from tipbench.tracking import Tracking, open_tracking

if TYPE_CHECKING:
    from tipbench.bench.bench import Bench
    from tipbench.bench.foreign import ForeignExperiment
    from tipbench.collect.run import Collecting
    from tipbench.engines import Engines
    from tipbench.imported import Importing
    from tipbench.judging.agent import AgentJudging
    from tipbench.judging.auto.graders import JudgeModel, Price
    from tipbench.judging.auto.run import AutoJudging
    from tipbench.judging.records import Status
    from tipbench.judging.service import Judging
    from tipbench.portable.export import Exporting
    from tipbench.portable.import_ import BringingIn
    from tipbench.promotion.gate import Gate
    from tipbench.promotion.promote import Promoting
    from tipbench.ranking.kept import KeptBoards
    from tipbench.ranking.records import BoardTier, By, Report
    from tipbench.tracking import Experiment
    from tipbench.tracking.search import Reading

LITELLM = "litellm:"
"""How the name of a judge begins that is asked through LiteLLM."""


@dataclass(frozen=True)
class Workbench:
    """The phases under one set of settings, on one MLflow."""

    settings: Settings
    tracking: Tracking
    stamps: Stamps
    packs: dict[str, Pack] = field(default_factory=dict[str, Pack], repr=False)
    """Packs that were read, by their hash."""

    def open(self, experiment: str, *, fresh: bool = False) -> "Bench":
        """The experiment of that name, read when it is asked for something.

        Raises:
            ExperimentNotFound: there is none.
        """
        from tipbench.bench.bench import open_bench

        return open_bench(self.tracking, experiment, stamps=self.stamps, packs=self.packs, fresh=fresh)

    def find(self, experiment: str, *, fresh: bool = False) -> "Bench | ForeignExperiment":
        """The experiment, opened; one that the original made as it was read there.

        Raises:
            ExperimentNotFound: there is none, or it holds nothing that can be read.
        """
        from tipbench.bench.foreign import read_foreign

        try:
            return self.open(experiment, fresh=fresh)
        except ExperimentNotFound as not_ours:
            try:
                return read_foreign(self.tracking, experiment)
            except ExperimentNotFound:
                raise not_ours from None

    def compare(self, found: "Bench | ForeignExperiment", by: "By", tier: "BoardTier" = "lazy") -> "Report":
        """The leaderboard; of an experiment that the original made its means, read only."""
        from tipbench.bench.bench import Bench
        from tipbench.ranking.compare import compare_bench, report_foreign

        if isinstance(found, Bench):
            return compare_bench(found, by, tier, gate=self.settings.gate)
        return report_foreign(found, by)

    def board(
        self, experiment: str, by: "By", tier: "BoardTier" = "lazy", *, fresh: bool = False
    ) -> "Report":
        """The same of the experiment of that name: the one that was kept, while it would come out the same.

        Raises:
            ExperimentNotFound: there is none, or it holds nothing that can be read.
        """
        try:
            found = self.tracking.find_experiment(experiment)
        except ExperimentNotFound:
            return self.compare(self.find(experiment, fresh=fresh), by, tier)
        reading = self.tracking.open_reading(found, fresh=fresh)
        return self.board_of(found, reading, by, tier, fresh=fresh)

    def board_of(
        self,
        found: "Experiment",
        reading: "Reading",
        by: "By",
        tier: "BoardTier" = "lazy",
        *,
        fresh: bool = False,
        bench: "Bench | None" = None,
    ) -> "Report":
        """The same of an experiment that was read already; its `bench`, where somebody has opened it."""
        from tipbench.ranking.kept import KeptBoards

        boards = KeptBoards(self.tracking, reading, found.name, self.settings.gate)
        kept = None if fresh else boards.find(by, tier)
        return kept or self._make_board(boards, bench or self.bench_of(found, reading), by, tier)

    def bench_of(self, found: "Experiment", reading: "Reading") -> "Bench":
        """The experiment as it was read."""
        from tipbench.bench.bench import Bench

        return Bench(self.tracking, found, self.stamps, self.packs, reading=reading)

    def _make_board(self, boards: "KeptBoards", bench: "Bench", by: "By", tier: "BoardTier") -> "Report":
        from tipbench.bench.champions import Champion, find_champion
        from tipbench.ranking.compare import compare_bench

        told = Champion()

        def find(tracking: Tracking, pack: str) -> Champion:
            nonlocal told
            told = find_champion(tracking, pack)
            return told

        report = compare_bench(bench, by, tier, gate=self.settings.gate, find=find)
        if not bench.lacks_packs:
            boards.keep(report, tier, pack=bench.pack.name, champion=told)
        return report

    def status(self, experiment: str, *, fresh: bool = False) -> "Status":
        """Where judging of it stands: as it was kept, while it would come out the same.

        Raises:
            ExperimentNotFound: there is none.
        """
        from tipbench.judging.kept import find_status

        found, delta = self.tracking.find_experiment(experiment), self.settings.delta
        reading, now_ms = self.tracking.open_reading(found, fresh=fresh), self.stamps.now_ms()
        kept = None if fresh else find_status(reading, experiment=found.name, delta=delta, now_ms=now_ms)
        return kept or self.judging.status_of(self.bench_of(found, reading), delta=delta)

    @cached_property
    def importing(self) -> "Importing":
        """Experiments of other programs become ours, under the rubric of the pack that is set."""
        from tipbench.grid import open_pack
        from tipbench.imported import Importing

        return Importing(self.tracking, self.stamps, open_pack(self.settings.pack))

    def exporting(self, report: Callable[[int, int], None]) -> "Exporting":
        """Experiments go into files; `report` is told how many runs of how many are read."""
        from tipbench.portable.export import Exporting

        return Exporting(self.tracking, self.stamps, report)

    def bringing_in(self, report: Callable[[int, int], None]) -> "BringingIn":
        """Files become experiments; `report` is told how many runs of how many are stored."""
        from tipbench.portable.import_ import BringingIn

        return BringingIn(self.tracking, self.settings.home / "locks", report)

    def within(self, experiment: str) -> "Workbench":
        """The same for another experiment."""
        return replace(self, settings=self.settings.model_copy(update={"experiment": experiment}))

    @cached_property
    def collecting(self) -> "Collecting":
        """Cells are generated and stored."""
        from tipbench.collect.run import Collecting

        return Collecting(self.tracking, self.stamps, self.settings.judge_kind)

    @cached_property
    def judging(self) -> "Judging":
        """Items are handed out, verdicts taken in."""
        from tipbench.bench.blindness import Looks
        from tipbench.judging.service import Judging

        home = self.settings.home
        looks = Looks(home / ADMIN_DATABASE)
        return Judging(self.tracking, self.stamps, home / "locks", self.packs, self.settings.gate, looks)

    def auto_judging(self, report: Callable[[int, int], None]) -> "AutoJudging":
        """A model judges everything; `report` is told how many of how many are done."""
        from tipbench.judging.auto.run import AutoJudging

        return AutoJudging(self.judging, self.settings.home / "auto", report)

    def agent_judging(self, report: Callable[[str], None], environ: Mapping[str, str]) -> "AgentJudging":
        """The coding agent of the settings judges; `report` is told what it prints.

        Raises:
            NoAgent: none is set, or it cannot be started.
        """
        from tipbench.judging.agent import AgentJudging, find_agent

        return AgentJudging(self.judging, find_agent(self.settings, environ), report)

    @cached_property
    def gate(self) -> "Gate":
        """May a challenger replace the champion?"""
        from tipbench.promotion.gate import Gate

        return Gate(self.tracking, self.stamps, self.settings.gate)

    def promoting(self, by: str) -> "Promoting":
        """Promotions by this person."""
        from tipbench.promotion.promote import Promoting

        return Promoting(self.gate, by)


@contextmanager
def open_workbench(settings: Settings) -> Generator[Workbench]:
    """The workbench on the MLflow that the settings name; the connection is closed at the end.

    Raises:
        TrackingError: MLflow is not reached.
    """
    with open_tracking(settings) as tracking:
        yield Workbench(settings, tracking, tracking.follow_clock(make_stamps()))


def find_judge(name: str, settings: Settings, engines: "Engines") -> "JudgeModel":
    """The automatic judge of that name: a program, behind LiteLLM, or a model of one of our engines.

    Raises:
        ModelRefused: nobody has it, or it is too big.
        UsageError: half a price is set.
    """
    from tipbench.judging.auto.graders import judge_behind_litellm, judge_by_command, judge_on_engine

    price = _find_price(settings)
    if name.startswith(COMMAND):
        seconds = settings.judge_answer_seconds
        return judge_by_command(name.removeprefix(COMMAND), os.environ, seconds=seconds, price=price)
    if name.startswith(LITELLM):
        return judge_behind_litellm(name.removeprefix(LITELLM), price=price)
    model = engines.admit(name)
    return judge_on_engine(model, engines.engine_of(model), price=price)


def _find_price(settings: Settings) -> "Price | None":
    from tipbench.judging.auto.graders import Price

    prompt, output = settings.judge_price_prompt, settings.judge_price_output
    if (prompt is None) != (output is None):
        raise UsageError("judge_price_prompt and judge_price_output belong together: set both")
    return None if prompt is None or output is None else Price(prompt / 1000, output / 1000)
