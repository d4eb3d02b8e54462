"""Personas: the sorts of people that simulated users are drawn from."""

from dataclasses import dataclass

KINDS = ("focus", "break", "plan", "social")


@dataclass(frozen=True)
class Persona:
    """Habits in the middle; a user is drawn around them. `likes` is per kind, in log odds."""

    name: str
    preferred_hour: float
    completion_rate: float
    dismiss_rate: float
    mean_dwell_seconds: float
    tip_volume: float
    likes: tuple[float, ...]


PERSONAS = (
    Persona("nurse", 8.0, 0.55, 0.25, 90.0, 15.0, (-0.6, 0.9, 0.2, 0.0)),
    Persona("student", 19.0, 0.35, 0.45, 240.0, 30.0, (0.3, 0.2, -0.8, 0.6)),
    Persona("founder", 9.0, 0.50, 0.40, 60.0, 40.0, (0.9, -0.6, 0.4, -0.3)),
    Persona("retiree", 17.0, 0.65, 0.15, 420.0, 10.0, (-0.2, 0.3, 0.5, 0.8)),
)
