"""Campaigns without weights: texts say how good they are, and judges who see nothing but texts read it."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from random import Random
from uuid import uuid4

from tests.support.experiments import Where, collect_with
from tests.support.scripted import ScriptedEngine, make_model
from tests.support.sheets import REFERENCES
from tests.support.templates import Place, copy_or_make, rename_pack
from tipbench.clock import Stamps, make_stamps
from tipbench.grid import Cell
from tipbench.judging.request import SittingRequest
from tipbench.judging.service import Judging
from tipbench.pack import builtin_pack, parse_pack
from tipbench.promotion.gate import Gate
from tipbench.promotion.promote import Promoting
from tipbench.records import Options, Pack, Sampling
from tipbench.settings import GateSettings
from tipbench.tracking import Tracking

SCALES = ("relevance", "actionability", "tone")
POINTS = re.compile(r"worth (\d+) points")
LAZY_ONLY = GateSettings(require="lazy", looks=(0.5, 1.0))


def make_pack(name: str, *, scenarios: int = 4, prompts: Sequence[str] = ("v1",)) -> Pack:
    """The built-in pack under another name, so that its champions are nobody else's."""
    files = dict(builtin_pack().files)
    lines = files["scenarios.jsonl"].splitlines()[:scenarios]
    ids = {json.loads(line)["id"] for line in lines}
    anchors = [line for line in files["anchors.jsonl"].splitlines() if json.loads(line)["scenario"] in ids]
    for path in [path for path in files if path.startswith("prompts/")]:
        text = files.pop(path)
        if path == "prompts/v1.md":
            files |= {f"prompts/{each}.md": text + f"\n({each})\n" for each in prompts}
    files["scenarios.jsonl"] = "\n".join(lines) + "\n"
    files["anchors.jsonl"] = "\n".join(anchors) + "\n"
    return rename_pack(parse_pack(files), name)


def levelled_engine(level_of: Mapping[str, float], n_tips: int = 2) -> ScriptedEngine:
    """Writes texts that say how many points they are worth: the arm's level and a little luck."""

    def write(model: str, prompt: str, rng: Random) -> str:
        tips: list[str] = []
        for n in range(n_tips):
            points = round(level_of[model] + rng.uniform(-1.4, 1.4))
            word = f"{rng.choice('bcdfg')}{rng.choice('aeiou')}{rng.randrange(10**6)}"
            tips.append(f"{n + 1}. Finish the report on {word} before lunch, it is worth {points} points.")
        return "\n".join(tips) if level_of[model] > 0 else ""

    return ScriptedEngine(tuple(level_of), write)


def read_scores(text: str, *, bias: int = 0) -> dict[str, int]:
    """What a judge makes of a text: its points spread over the scales; anchors get their references."""
    if text in REFERENCES:
        return dict(REFERENCES[text])
    found = POINTS.search(text)
    points = max(3, min(15, int(found[1]) + bias)) if found else 3
    return {name: points // 3 + (points % 3 > place) for place, name in enumerate(SCALES)}


def judge_sheet(path: Path, *, score_of: Mapping[str, int] | None = None) -> None:
    """Fills the sheet as the texts deserve, or all alike."""
    sheet = json.loads(path.read_text(encoding="utf-8"))
    for item in (item for section in sheet["sections"] for item in section["items"]):
        alike = score_of is not None and item["text"] not in REFERENCES
        item["scores"] = dict(score_of or {}) if alike else read_scores(item["text"])
    path.write_text(json.dumps(sheet), encoding="utf-8")


@dataclass
class Campaign:
    """One experiment on the shared server, with a pack of its own."""

    tracking: Tracking
    home: Path
    levels: dict[str, float]
    pack: Pack = field(default_factory=lambda: make_pack(f"pack-{uuid4().hex[:8]}"))
    experiment: str = field(default_factory=lambda: f"gate-{uuid4().hex[:8]}")
    n_tips: int = 2
    judge_kind: str = "claude-code"
    stamps: Stamps = field(default_factory=make_stamps)
    sheets: "count[int]" = field(default_factory=count)

    def cells(self) -> list[Cell]:
        options = Options(sampling=Sampling(max_tokens=200), n_tips=self.n_tips, diversity=False, seed=1)
        return [
            Cell(self.pack, make_model(model), prompt, scenario, options)
            for model in self.levels
            for prompt in self.pack.prompts
            for scenario in self.pack.scenarios
        ]

    def collect(self, *, champion: str = "") -> "Campaign":
        """All cells, and the arm that is the first champion; a copy if the same was generated before."""

        def make(place: Place) -> None:
            made = replace(self, tracking=place.tracking, experiment=place.experiment, pack=place.pack)
            made.generate(champion=champion)

        copy_or_make(
            Place(self.tracking, self.experiment, self.pack),
            make=make,
            alike=[self.levels, self.n_tips, champion, self.judge_kind],
            with_champion=bool(champion),
        )
        return self

    def generate(self, *, champion: str = "") -> "Campaign":
        """The same by the product alone."""
        engine = levelled_engine(self.levels, self.n_tips)
        where = Where(self.tracking, self.experiment, self.stamps, judge_kind=self.judge_kind)
        collect_with(lambda _: engine, self.cells(), where=where)
        if champion:
            self.name_first(champion)
        return self

    def judging(self, gate: GateSettings = LAZY_ONLY) -> Judging:
        return Judging(self.tracking, self.stamps, self.home / "locks", gate=gate)

    def judge(
        self, *, blocks: int | None = None, score_of: Mapping[str, int] | None = None, judged_by: str = "anna"
    ) -> int:
        """Hands blocks out, judges the file, takes it in; gives how many verdicts count now."""
        path = self.home / f"sheet-{self.experiment}-{next(self.sheets)}.json"
        handout = self.judging().hand_out(
            path, SittingRequest(judged_by, blocks=blocks), experiment=self.experiment
        )
        assert handout is not None
        judge_sheet(path, score_of=score_of)
        taken = self.judging().take_in(path, experiment=self.experiment, judged_by=None, close=False)
        assert {section.outcome for section in taken.sections} == {"accepted"}
        return taken.status.judged

    def gate(self, settings: GateSettings = LAZY_ONLY) -> Gate:
        return Gate(self.tracking, self.stamps, settings)

    def promoting(self, settings: GateSettings = LAZY_ONLY, *, by: str = "the test") -> Promoting:
        return Promoting(self.gate(settings), by)

    def name_first(self, arm: str) -> None:
        self.promoting().name_first(arm, experiment=self.experiment, reason="the first one")

    def write_pack(self, folder: Path) -> Path:
        """The pack as a folder, for commands that take one."""
        for name, text in self.pack.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        return folder
