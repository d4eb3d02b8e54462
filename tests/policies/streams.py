"""Streams of situations with known rewards, for comparing policies with other implementations."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tipbench.policies.events import ProfileFeatures, Situation, Tip
from tipbench.policies.features import MOMENT, Vector

KINDS = ("focus", "break", "plan", "social")


@dataclass(frozen=True)
class Step:
    """One situation, what each tip is worth on average, and what it would bring."""

    situation: Situation
    expected: Vector
    rewards: Vector


def make_stream(count: int, *, seed: int) -> Iterator[Step]:
    """Tips of four kinds; what a kind is worth depends linearly on the features of version 1."""
    generator = np.random.default_rng(seed)
    worth = generator.normal(scale=0.4, size=(len(KINDS), MOMENT.dimension))
    for number in range(count):
        situation = Situation(
            hour=float(generator.uniform(0, 24)),
            weekend=bool(generator.random() < 2 / 7),
            tips=tuple(
                Tip(
                    id=f"{number}-{kind}",
                    kind=kind,
                    urgency=float(generator.random()),
                    match=float(generator.random()),
                    hours_since_kind=float(generator.exponential(24)),
                )
                for kind in KINDS
            ),
            profile_features=ProfileFeatures(completion_rate=float(generator.random())),
        )
        expected = np.sum(MOMENT.measure_tips(situation) * worth, axis=1)
        yield Step(situation, expected, expected + generator.normal(scale=0.2, size=len(KINDS)))
