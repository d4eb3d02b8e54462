"""Leaderboards: two tiers of verdicts in, standings out. The statistics' names are re-exported."""

from tipbench.stats import *  # noqa: F403
