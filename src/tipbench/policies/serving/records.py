"""What is asked over HTTP, and what is answered."""

from typing import Annotated

from pydantic import Field, StrictBool

from tipbench.policies.events import (
    Hour,
    Kind,
    KnownProfile,
    Name,
    ProfileFeatures,
    Reward,
    Share,
    Situation,
    Tips,
    UserId,
)
from tipbench.records import Record, RequestRecord


class ScoreRequest(Situation, RequestRecord):
    """A situation of a user: which tip?"""

    user: UserId


class Scored(Record):
    """The chosen tip. `decision` is what a reward must name; `reward_at` is where it goes."""

    decision: str
    policy: str
    tip: str
    kind: str
    propensity: float
    reward_at: str


class RewardRequest(RequestRecord):
    """What the user did with a tip: 1 the best, −1 the worst. The profile is logged, not learned:
    a reward is learned with the features of its decision."""

    user: UserId
    decision: Name
    reward: Reward
    profile_features: ProfileFeatures | None = None


class RewardAnswer(Record):
    """`repeated`: the reward had been taken before."""

    decision: str
    policy: str
    repeated: bool


class Task(Record):
    """One open task of the user."""

    text: Annotated[str, Field(min_length=1, max_length=500)]
    urgency: Share = 0.0


class RecommendRequest(RequestRecord):
    """A situation of a user; without `tips` those of the champion are offered, matched with the tasks."""

    user: UserId
    hour: Hour
    weekend: StrictBool
    tips: Tips | None = None
    tasks: Annotated[tuple[Task, ...], Field(max_length=50)] = ()
    profile_features: KnownProfile = ProfileFeatures()


class Recommended(Scored):
    """`text` is that of the champion's tip; empty when the request brought its own tips."""

    text: str = ""


class ResetRequest(RequestRecord):
    """Whom to forget."""

    user: UserId


class ResetAnswer(Record):
    """`epoch` counts how often the user was reset."""

    user: str
    epoch: int


class KindStats(Record):
    """What was learned of one kind of tips; `weights` by the names of the features."""

    rewards: int
    mean_reward: float
    weights: dict[str, float]


class Stats(Record):
    """What a policy knows of a user."""

    user: str
    policy: str
    epoch: int
    decisions: int
    rewards: int
    mean_reward: float | None
    kinds: dict[Kind, KindStats]


class Refusal(Record):
    """What was wrong, and what to do."""

    error: str
    hint: str = ""
