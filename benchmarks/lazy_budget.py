"""A small lazy budget with the automatic judge on everything: false and true promotions, as markdown.

    python -m benchmarks.lazy_budget [--campaigns 2000] [--seed 120000000] [--only TEXT]

Run from the top folder. Whole campaigns with three planned looks, as the gate takes them. Every campaign is
judged once; `no auto tier` is the same campaign with the automatic verdicts taken out, so that both columns
rest on the same lazy verdicts. The gate asks as `gate.require = "agree"` does. Every line is printed as soon
as it is measured.
"""

import argparse
import sys
import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from tests.stats.bars import share
from tests.stats.simulator import Campaign, Setting, run_campaign

from tipbench.stats import Score, Terms, examine_gate

LOOKS = (0.5, 0.75, 1.0)
BUDGETS = (48, 96)
FEW = (0.0,) * 4
LEADER = (1.5, 0.0, 0.0, 0.0)
FALSE_PROMOTIONS = 0.06
AGREE = Terms(require="agree")
TIERS = {"auto on everything": True, "no auto tier": False}
"""Heading → whether the automatic judge has judged."""


@dataclass(frozen=True)
class Case:
    """One line: campaigns, and who is champion; with `true`, promotions of a better arm are counted."""

    name: str
    setting: Setting
    champion: int | None = 1
    """None: the arm in the middle."""
    true: bool = False


NULL, SMALL = Setting(world="null"), Setting(effects=FEW, scenarios=24)
CASES = (
    Case("null, 12 arms × 8", NULL),
    Case("null, auto +3 for a challenger, 12 arms × 8", replace(NULL, auto_extra=3.0)),
    Case("clear over the middle, 12 arms × 8", Setting(world="clear"), champion=None, true=True),
    Case("null, 4 arms × 24", SMALL),
    Case("one ahead by 1.5, 4 arms × 24", replace(SMALL, effects=LEADER), champion=None, true=True),
    Case("null, champion twice as noisy, 12 arms × 8", replace(NULL, noisy_arm=2.0), champion=0),
)


def main() -> int:
    """Print the table; 1 when there are too many false promotions."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--campaigns", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=120_000_000)
    parser.add_argument("--only", default="")
    asked = parser.parse_args()
    print("| campaigns | lazy budget |", *(f"{name} |" for name in TIERS), "± | wrong | CPU s |")
    print("| --- | --- |", "--- | " * (len(TIERS) + 3))
    missed = 0
    for number, case in enumerate(CASES):
        for budget in BUDGETS:
            if asked.only in case.name:
                first = asked.seed + (number * len(BUDGETS) + BUDGETS.index(budget)) * 100_000
                missed += _print_line(case, budget, range(first, first + asked.campaigns))
    return 1 if missed else 0


def _print_line(case: Case, budget: int, seeds: range) -> bool:
    start = time.process_time()
    hits: dict[str, list[bool]] = {name: [] for name in TIERS}
    wrong: list[bool] = []
    for seed in seeds:
        campaign = run_campaign(case.setting, verdicts=budget, seed=seed)
        truth = campaign.truth
        champion = (
            int(np.argsort(truth, kind="stable")[len(truth) // 2]) if case.champion is None else case.champion
        )
        for name, with_auto in TIERS.items():
            promoted = _ask_gate(campaign, champion, budget, with_auto=with_auto)
            better = promoted is not None and truth[int(str(promoted))] > truth[champion] + 1e-9
            hits[name].append(better if case.true else promoted is not None)
            wrong.append(case.true and promoted is not None and not better)
    shown = {name: share(found) for name, found in hits.items()}
    figures = [f"{100 * seen.value:.1f} %" for seen in shown.values()]
    error = max(seen.error for seen in shown.values())
    wrongly = f"{100 * share(wrong).value:.1f} %" if case.true else ""
    spent = f"{time.process_time() - start:.0f}"
    print(
        "|",
        " | ".join((case.name, str(budget), *figures, f"{100 * error:.1f} %", wrongly, spent)),
        "|",
        flush=True,
    )
    return not case.true and any(seen.value > FALSE_PROMOTIONS for seen in shown.values())


def _ask_gate(campaign: Campaign, champion: int, budget: int, *, with_auto: bool) -> Hashable | None:
    """Whom the gate promotes at one of the planned looks."""
    arms = len(campaign.effects)
    for look, fraction in enumerate(LOOKS):
        verdicts = round(budget * fraction)
        if verdicts < AGREE.scenarios * arms:
            continue  # Too few scenarios: this look promotes nobody.
        records: Sequence[Score] = campaign.records(verdicts)
        if not with_auto:
            records = [replace(record, auto=None) for record in records]
        decision = examine_gate(records, champion, look=look, fractions=LOOKS, terms=AGREE)
        if decision.promoted is not None:
            return decision.promoted
    return None


if __name__ == "__main__":
    sys.exit(main())
