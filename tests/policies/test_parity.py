"""Our policies beside the formulas in plain numpy, and beside Vowpal Wabbit."""

from typing import Any

import numpy as np
import pytest
import vowpalwabbit  # pyright: ignore[reportMissingTypeStubs]

from tests.policies.streams import KINDS, Step, make_stream
from tipbench.policies.features import Matrix, Vector
from tipbench.policies.policy import Policy, choose_tip, draw_for, list_policies
from tipbench.policies.rules.egreedy import EPSILON
from tipbench.policies.rules.linucb import ALPHA
from tipbench.policies.states import RIDGE, KindModel

UPDATES = (2_000, pytest.param(10_000, marks=pytest.mark.slow))


@pytest.fixture(scope="module", params=UPDATES)
def stream(request: pytest.FixtureRequest) -> list[Step]:
    return list(make_stream(request.param, seed=1))


class Reference:
    """Ridge regression by Sherman–Morrison: another road to the same formulas."""

    def __init__(self, dimension: int) -> None:
        self.inverse: Matrix = np.eye(dimension) / RIDGE
        self.moment: Vector = np.zeros(dimension)

    def learn(self, x: Vector, reward: float) -> None:
        towards = self.inverse @ x
        self.inverse = self.inverse - np.outer(towards, towards) / (1 + x @ towards)
        self.moment = self.moment + reward * x

    def expect(self, x: Vector) -> float:
        return float(x @ self.inverse @ self.moment)

    def doubt(self, x: Vector) -> float:
        return float(np.sqrt(x @ self.inverse @ x))


@pytest.mark.parametrize("name", ["egreedy-v1", "egreedy-v2", "linucb"])
def test_scores_and_propensities_are_those_of_the_formulas_over_thousands_of_updates(
    stream: list[Step], name: str
) -> None:
    policy = list_policies()[name]
    bonus = ALPHA if name == "linucb" else 0.0
    explored = 0.0 if name == "linucb" else EPSILON
    models: dict[str, KindModel] = {}
    references = {kind: Reference(policy.features.dimension) for kind in KINDS}
    worst = 0.0
    for number, step in enumerate(stream):
        choice = choose_tip(policy, step.situation, models, draw=draw_for(7, str(number)))
        rows = policy.features.measure_tips(step.situation)
        scores = np.array(
            [
                references[k].expect(x) + bonus * references[k].doubt(x)
                for k, x in zip(KINDS, rows, strict=True)
            ]
        )
        worst = max(worst, float(np.abs(scores - choice.scores).max()))
        best = np.abs(scores - scores.max()) < 1e-9
        wanted = explored / len(KINDS) + (1 - explored) * best / best.sum()
        np.testing.assert_allclose(choice.propensities, wanted, atol=1e-12)
        kind, reward = KINDS[choice.index], float(step.rewards[choice.index])
        models[kind] = models.get(kind, KindModel.empty(len(choice.x))).learn(choice.x, reward)
        references[kind].learn(choice.x, reward)
    assert sum(model.count for model in models.values()) == len(stream)
    assert worst < 1e-10


@pytest.mark.parametrize("updates", UPDATES)
def test_the_model_is_the_ridge_solution_of_all_rows(updates: int) -> None:
    generator = np.random.default_rng(3)
    rows, rewards = generator.normal(size=(updates, 12)), generator.normal(size=updates)
    model = KindModel.empty(12)
    for row, reward in zip(rows, rewards, strict=True):
        model = model.learn(row, float(reward))
    stacked = np.vstack([rows, np.sqrt(RIDGE) * np.eye(12)])
    wanted = np.linalg.lstsq(stacked, np.append(rewards, np.zeros(12)), rcond=None)[0]
    np.testing.assert_allclose(model.weights, wanted, rtol=1e-9, atol=1e-12)


def run_ours(policy: Policy, *, seed: int, count: int) -> float:
    models: dict[str, KindModel] = {}
    regret = 0.0
    for number, step in enumerate(make_stream(count, seed=seed)):
        choice = choose_tip(policy, step.situation, models, draw=draw_for(seed, str(number)))
        kind = KINDS[choice.index]
        models[kind] = models.get(kind, KindModel.empty(len(choice.x))).learn(
            choice.x, float(step.rewards[choice.index])
        )
        regret += float(step.expected.max() - step.expected[choice.index])
    return regret


def run_vowpal_wabbit(options: str, *, seed: int, count: int) -> float:
    policy = list_policies()["egreedy-v1"]
    learner: Any = vowpalwabbit.Workspace(f"--cb_explore_adf {options} --quiet --random_seed {seed}")
    regret = 0.0
    for number, step in enumerate(make_stream(count, seed=seed)):
        rows = policy.features.measure_tips(step.situation)
        # Features named by kind: a model for each kind of tip, as ours has.
        lines = [
            "|T " + " ".join(f"{kind}{place}:{value:.6f}" for place, value in enumerate(row))
            for kind, row in zip(KINDS, rows, strict=True)
        ]
        predicted: list[float] = learner.predict(lines)
        shares = np.array(predicted)
        index = int(np.searchsorted(np.cumsum(shares), draw_for(seed, str(number))))
        index = min(index, len(KINDS) - 1)
        cost = -float(step.rewards[index])
        lines[index] = f"0:{cost:.6f}:{shares[index]:.6f} {lines[index]}"
        learner.learn(lines)
        regret += float(step.expected.max() - step.expected[index])
    learner.finish()
    return regret


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_regret_is_not_above_vowpal_wabbits_on_the_same_stream(seed: int) -> None:
    policies = list_policies()
    count = 1_500
    ours = {name: run_ours(policies[name], seed=seed, count=count) for name in policies}
    theirs = run_vowpal_wabbit(f"--epsilon {EPSILON}", seed=seed, count=count)
    print({name: round(regret, 1) for name, regret in ours.items()}, "vowpalwabbit", round(theirs, 1))
    assert ours["egreedy-v1"] <= theirs
    assert ours["linucb"] < ours["egreedy-v1"] < 0.5 * ours["random"]
