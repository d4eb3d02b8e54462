"""The bars, over few campaigns, with room for chance; benchmarks/stats_bars.py makes the full table."""

import pytest

from tests.stats.bars import Bar, Methods
from tests.stats.mutants import MUTANTS, Mutant
from tests.stats.table import BARS, RACES, bar_named

SLACK = 3.0
"""Standard errors of the figure."""
QUICK = (
    "shifts and order: largest change",
    "coverage, 8 scenarios, 96 verdicts, correlation 0.65",
    "false promotion, null, 96 verdicts",
    "true promotion over the median arm, 192",
    "true best tied for first, spread, 96",
    "mean top P(best) − hit rate, spread, 96",
    "4 anchors: false alarms",
    "4 anchors: +2 seen",
)


@pytest.mark.parametrize("name", QUICK)
def test_the_bar_holds_over_a_few_campaigns(name: str) -> None:
    bar = bar_named(name)
    seen = bar.measure(Methods(), range(40))
    assert bar.holds(seen, slack=SLACK), seen


@pytest.mark.slow
@pytest.mark.parametrize("bar", [*BARS, *RACES], ids=lambda bar: bar.name)
def test_the_bar_holds(bar: Bar) -> None:
    seen = bar.measure(Methods(), range(bar.short))
    assert bar.holds(seen, slack=SLACK), seen


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: f"{mutant.name}: {mutant.caught_by}")
def test_a_wrong_method_fails_its_bar(mutant: Mutant) -> None:
    bar = bar_named(mutant.caught_by)
    seen = bar.measure(mutant.methods, range(bar.short))
    assert not bar.holds(seen, slack=SLACK), seen
