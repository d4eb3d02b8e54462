"""Leaderboards: two tiers of verdicts in, standings out."""
