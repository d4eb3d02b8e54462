"""Every degenerate case has an answer, and numpy does not warn (warnings are errors here)."""

import math

import pytest

from tipbench.stats import Score, agreement, delta, gate, leaderboard, next_batch, p_best

LOWEST = 2.0


def grid(
    arms: int, scenarios: int, candidates: int = 2, *, lazy: float | None = 9.0, auto: float | None = 10.0
) -> list[Score]:
    """All alike."""
    return [
        Score(g, s, c, auto=auto, lazy=lazy)
        for g in range(arms)
        for s in range(scenarios)
        for c in range(candidates)
    ]


CASES = {
    "nothing": [],
    "one verdict": [Score("a", 0, 0, lazy=9.0)],
    "one arm": [Score("a", s, 0, lazy=9.0 + s % 2) for s in range(6)],
    "one scenario": [Score(g, 0, 0, auto=9.0, lazy=8.0 + g) for g in range(4)],
    "two arms": [Score(g, s, 0, auto=9.0, lazy=8.0 + (g * s) % 3) for g in range(2) for s in range(4)],
    "two arms, two scenarios": [Score(g, s, 0, lazy=8.0 + g) for g in range(2) for s in range(2)],
    "all equal": grid(4, 6),
    "all failed": grid(4, 6, lazy=LOWEST, auto=None),
    "one arm failed": grid(3, 6, lazy=9.0)
    + [Score("bad", s, c, lazy=LOWEST) for s in range(6) for c in (0, 1)],
    "no auto tier": [Score(g, s, 0, lazy=8.0 + (g + s) % 3) for g in range(4) for s in range(6)],
    "auto for a part": [
        Score(
            g, s, c, auto=9.0 + (g * s + c) % 4 if s < 3 else None, lazy=8.0 + (g + s + c) % 3 if c else None
        )
        for g in range(4)
        for s in range(6)
        for c in range(3)
    ],
    "auto only": grid(3, 4, lazy=None),
    "no verdicts at all": grid(3, 4, lazy=None, auto=None),
    "constant arms": [Score(g, s, 0, auto=float(g), lazy=8.0 + 2 * g) for g in range(3) for s in range(6)],
    "nobody shares a scenario": [Score(g, g, c, lazy=9.0 + c) for g in range(4) for c in range(2)],
}


@pytest.mark.parametrize("case", CASES)
def test_every_function_answers(case: str) -> None:
    scores = CASES[case]
    board = leaderboard(scores)
    arms = {score.arm for score in scores}
    assert board.estimate.keys() | set(board.set_aside) == arms
    assert board.tied_for_first <= board.estimate.keys()
    assert board.rank_sets.keys() == board.estimate.keys()
    assert all(pair.low <= pair.difference <= pair.high for pair in board.pairs.values())
    chances = p_best(scores)
    assert chances.keys() == arms
    assert not arms or math.isclose(sum(chances.values()), 1.0)
    assert {item.arm for item in next_batch(scores, 12)} <= arms
    for champion in arms:
        assert gate(scores, champion) in {None, *arms} - {champion}
        assert gate(scores, champion, 0.05, 0, (0.5, 1.0)) in {None, *arms} - {champion}
    assert delta(scores).threshold >= 0.0
    assert agreement(scores).pairs >= 0


def test_one_scenario_has_estimates_but_no_interval_and_no_winner() -> None:
    board = leaderboard(CASES["one scenario"])
    assert board.estimate == {3: 11.0, 2: 10.0, 1: 9.0, 0: 8.0}
    assert board.pairs[3, 0] == (3.0, -math.inf, math.inf)
    assert board.tied_for_first == {0, 1, 2, 3}
    assert board.rank_sets[0] == (1, 4)
    assert (board.variance, board.winner) == (None, None)


def test_one_arm_is_first_but_wins_against_nobody() -> None:
    board = leaderboard(CASES["one arm"])
    assert (board.tied_for_first, board.rank_sets, board.winner) == ({"a"}, {"a": (1, 1)}, None)


def test_equal_arms_are_all_tied_and_nobody_is_promoted() -> None:
    for case in ("all equal", "all failed"):
        board = leaderboard(CASES[case])
        assert board.tied_for_first == {0, 1, 2, 3}
        assert set(board.rank_sets.values()) == {(1, 4)}
        assert gate(CASES[case], 0) is None


def test_two_equal_differences_in_two_scenarios_prove_nothing() -> None:
    assert leaderboard(CASES["two arms, two scenarios"]).winner is None


def test_arms_that_never_vary_are_separated_where_there_are_enough_scenarios() -> None:
    board = leaderboard(CASES["constant arms"])
    assert board.winner == 2
    assert gate(CASES["constant arms"], 0) == 2


def test_a_failed_arm_is_last() -> None:
    assert leaderboard(CASES["one arm failed"]).rank_sets["bad"] == (4, 4)


def test_without_verdicts_every_arm_is_set_aside() -> None:
    board = leaderboard(CASES["auto only"])
    assert (board.estimate, board.set_aside, board.scenarios) == ({}, (0, 1, 2), ())
