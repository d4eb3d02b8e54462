"""The campaign that comes with the package: a whole experiment in a file, judged, to be looked at.

Nothing is known of it here but where it lies: what it says of itself is read out of it.
"""

from collections import Counter
from pathlib import Path

from tipbench.bench.bench import Bench
from tipbench.bench.champions import PromotionFacts, read_past_promotions
from tipbench.bench.evidence import CountedVerdict
from tipbench.clock import format_time
from tipbench.records import LAZY_KINDS, Record

CAMPAIGN = Path(__file__).with_name("campaign.tipbench")
NAME = "tip-campaign-recorded"
"""What it becomes where the name is free: `tip-campaign` is who collects one."""
JUDGES: dict[str, str] = dict(zip(LAZY_KINDS, ("coding agent", "person"), strict=True))


class Origin(Record):
    """What a judged experiment is made of, and who judged it, in words."""

    models: tuple[str, ...]
    made: str
    """Without a name of a model or a prompt: a judge may read it."""
    judged: str


def read_origin(bench: Bench) -> Origin:
    """What the experiment says of itself."""
    facts = [cell.facts for cell in bench.evidence.cells]
    models, engines = sorted({each.model for each in facts}), sorted({each.engine for each in facts})
    prompts, scenarios = len({each.prompt for each in facts}), len({each.scenario for each in facts})
    return Origin(
        models=tuple(models),
        made=f"{len(models)} models ({', '.join(engines)}) with {prompts} prompts in {scenarios} scenarios, "
        f"{sum(len(each.slots) for each in facts)} tips",
        judged=_tell_judges(bench),
    )


def _tell_judges(bench: Bench) -> str:
    evidence = bench.evidence
    given = [each for each in (*evidence.lazy, *evidence.auto, *evidence.doubles) if not each.verdict.failed]
    if not given:
        return "judged by nobody"
    days = sorted({format_time(each.sitting.closed_ms)[:10] for each in given if each.sitting.closed_ms})
    when = " to ".join(dict.fromkeys([*days[:1], *days[-1:]]))
    judges = Counter(map(_name_judge, given)).most_common()
    told = ", ".join(f"{judge} ({number} verdicts)" for judge, number in judges)
    return f"judged blind by {told}, {when}"


def _name_judge(given: CountedVerdict) -> str:
    facts = given.sitting.facts
    return f"{JUDGES.get(facts.judge_kind, 'model')} {given.sitting.judged_by}"


def find_first_champion(bench: Bench) -> PromotionFacts | None:
    """Who was champion before anybody was promoted in an imported experiment; None where nobody was."""
    past = (each.facts for each in read_past_promotions(bench.runs))
    return next((facts for facts in past if facts.how == "initial"), None)
