"""Campaigns of the simulator through the real store: collected, judged by the file, judged by a model."""

import json
import re
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from tests.promotion.campaign import make_pack
from tests.ranking.simulated import arm_name, split_composite
from tests.stats.simulator import CANDIDATES, Campaign, Key
from tests.support.experiments import Where, collect_with, tick
from tests.support.scripted import ScriptedEngine, make_model
from tests.support.sheets import REFERENCES
from tipbench.bench.sittings import Answer, KeyItem, Spent
from tipbench.clock import Stamps
from tipbench.grid import Cell
from tipbench.judging.auto.graders import FREE, Grader, JudgeModel
from tipbench.judging.auto.run import AutoSitting, sit_down
from tipbench.judging.request import SittingRequest
from tipbench.judging.service import Judging
from tipbench.promotion.gate import Gate, GateQuestion
from tipbench.promotion.promote import Promoting
from tipbench.promotion.rules import GateReport
from tipbench.records import Options, Pack, Sampling
from tipbench.settings import GateSettings
from tipbench.stats import Score
from tipbench.tracking import Tracking

CODE = re.compile(r"page (\d+)")
MOST_SCENARIOS = 8
"""Texts are numbered as if there were so many."""


def numbering_engine(cells: Sequence[Cell]) -> ScriptedEngine:
    """Writes texts that say which candidate of the simulator they are: all that judges need here."""
    models = list(dict.fromkeys(cell.model.name for cell in cells))
    texts = list(dict.fromkeys(cell.text for cell in cells))

    def write(model: str, prompt: str, rng: Random) -> str:
        first = (models.index(model) * MOST_SCENARIOS + texts.index(prompt)) * CANDIDATES
        return "\n".join(
            f"{n + 1}. Read page {first + n} of the report before lunch." for n in range(CANDIDATES)
        )

    return ScriptedEngine(models, write)


def key_of(text: str) -> Key | None:
    """The simulator's candidate behind a text; None of an anchor."""
    found = CODE.search(text)
    if found is None or text in REFERENCES:
        return None
    cell, candidate = divmod(int(found[1]), CANDIDATES)
    return (*divmod(cell, MOST_SCENARIOS), candidate)


@dataclass
class StoredCampaign:
    """A campaign of the simulator that lives in MLflow. `sections` are the sittings in their order."""

    campaign: Campaign
    tracking: Tracking
    home: Path
    experiment: str
    settings: GateSettings
    stamps: Stamps = field(default_factory=tick)
    sections: list[str] = field(default_factory=list[str])

    def __post_init__(self) -> None:
        self.pack: Pack = make_pack(f"pack-{self.experiment}", scenarios=self.campaign.setting.scenarios)
        self.judging = Judging(self.tracking, self.stamps, self.home / "locks", gate=self.settings)

    def collect(self) -> None:
        options = Options(sampling=Sampling(), n_tips=CANDIDATES, diversity=False, seed=1)
        cells = [
            Cell(self.pack, make_model(f"m{arm:02}"), self.pack.prompts[0], scenario, options)
            for arm in range(len(self.campaign.effects))
            for scenario in self.pack.scenarios
        ]
        engine = numbering_engine(cells)
        where = Where(self.tracking, self.experiment, self.stamps)
        assert collect_with(lambda _: engine, cells, where=where) == len(cells)

    def name_first(self, arm: int) -> None:
        gate = Gate(self.tracking, self.stamps, self.settings)
        Promoting(gate, "the test").name_first(arm_name(arm), experiment=self.experiment, reason="in use")

    def ask_gate(self) -> GateReport:
        return Gate(self.tracking, self.stamps, self.settings).ask(GateQuestion(self.experiment))

    def judge_lazily(self, blocks: int) -> None:
        """Blocks by the real hand-out, in a file; the simulator says what the judge of each sitting gives."""
        path = self.home / f"{self.experiment}-{len(self.sections)}.json"
        request = SittingRequest("anna", blocks=blocks)
        assert self.judging.hand_out(path, request, experiment=self.experiment) is not None
        sheet = json.loads(path.read_text(encoding="utf-8"))
        for section in sheet["sections"]:
            keys = [key for item in section["items"] if (key := key_of(item["text"])) is not None]
            self.campaign.judge(keys)
            self.sections.append(section["sitting"])
            for item in section["items"]:
                key = key_of(item["text"])
                if key is None:
                    item["scores"] = REFERENCES[item["text"]]
                else:
                    item["scores"], item["flags"] = split_composite(self.campaign.lazy[key].lazy or 0)
        path.write_text(json.dumps(sheet), encoding="utf-8")
        taken = self.judging.take_in(path, experiment=self.experiment, judged_by=None, close=False)
        assert {section.outcome for section in taken.sections} == {"accepted"}

    def judge_automatically(self) -> None:
        """One sitting over everything; what it would ask a model the simulator answers."""
        judge = JudgeModel(
            name="scripted:judge", digest="d", pinned=True, price=FREE, patient=False, open=_nobody
        )
        sitting = sit_down(self.judging, judge, experiment=self.experiment)
        assert sitting is not None
        answers = {item.id: self._answer(sitting, item) for item in sitting.key.items}
        self.judging.submit_auto(
            sitting.token, answers, experiment=self.experiment, ledger="simulated", spent=Spent()
        )
        assert self.judging.release(sitting.token, experiment=self.experiment).state == "accepted"

    def _answer(self, sitting: AutoSitting, item: KeyItem) -> Answer:
        found = sitting.items.read(item)
        assert found is not None
        key = key_of(found.text)
        if key is None:
            return Answer(scores=dict(REFERENCES[found.text]), flags=dict(found.flags))
        assert self.campaign.auto is not None
        scores, flags = split_composite(float(self.campaign.auto[key]))
        return Answer(scores=scores, flags=flags)

    def simulated(self) -> Iterator[Score]:
        """What the simulator knows, under the names of the store."""
        for record in self.campaign.records():
            arm, sitting = arm_name(record.arm), record.sitting
            yield Score(
                arm=arm,
                scenario=self.pack.scenarios[int(str(record.scenario))].id,
                candidate=(arm, int(str(record.candidate))),
                auto=record.auto,
                lazy=record.lazy,
                sitting=None if sitting is None else self.sections[int(str(sitting))],
            )


@contextmanager
def _nobody() -> Generator[Grader]:
    raise AssertionError("the simulator answers, no model is opened")
    yield
