"""A judge that sees nothing but the exported file and looks at the text alone.

It knows no model and no prompt: overlap with the tasks, repetition, length, and whether words are words.
"""

import json
import random
import re
from pathlib import Path
from typing import Any


def judge_file(path: Path, *, shuffle_seed: int | None = None) -> None:
    """Fills the sheet in place; with a seed the scores are shuffled over the items of the whole sheet."""
    sheet = json.loads(path.read_text(encoding="utf-8"))
    known = _known_words(sheet)
    items = [(section, item) for section in sheet["sections"] for item in section["items"]]
    scores = [_score(item["text"], _scenario_words(section, item), known) for section, item in items]
    if shuffle_seed is not None:
        flags = [item["flags"] for _, item in items]
        answers = list(zip(scores, flags, strict=True))
        random.Random(shuffle_seed).shuffle(answers)
        for (_, item), (score, flag) in zip(items, answers, strict=True):
            item["scores"], item["flags"] = score, flag
    else:
        for (_, item), score in zip(items, scores, strict=True):
            item["scores"] = score
            item["reason"] = "by overlap, repetition and length"
    path.write_text(json.dumps(sheet, ensure_ascii=False, indent=1), encoding="utf-8")


def _score(text: str, scenario: set[str], known: set[str]) -> dict[str, int]:
    words = _words(text)
    if len(words) < 4:  # a fragment, not a tip
        return {"relevance": 1, "actionability": 1, "tone": 1}
    overlap = len({word for word in words if len(word) > 3} & scenario)
    fresh = len(set(words)) / len(words)
    real = sum(word in known for word in words) / len(words)
    length = 5 if 6 <= len(words) <= 25 else 3 if len(words) <= 40 else 1
    return {
        "relevance": _clip(1 + 1.5 * overlap),
        "actionability": _clip(length - 6 * max(0.0, 0.85 - fresh)),
        "tone": _clip(1 + 5 * real - 0.8),
    }


def _clip(value: float) -> int:
    return max(1, min(5, round(value)))


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z]+(?:'[a-z]+)?", text.lower())


def _known_words(sheet: Any) -> set[str]:
    """Words of rubric and scenarios, and what several items share."""
    known = set(_words(sheet["rubric"]["text"]))
    counts: dict[str, int] = {}
    for section in sheet["sections"]:
        known |= set(_words(json.dumps(section["scenarios"])))
        for item in section["items"]:
            for word in set(_words(item["text"])):
                counts[word] = counts.get(word, 0) + 1
    return known | {word for word, count in counts.items() if count >= 4}


def _scenario_words(section: Any, item: Any) -> set[str]:
    values = next(s["values"] for s in section["scenarios"] if s["label"] == item["scenario"])
    return {word for word in _words(json.dumps(values)) if len(word) > 3}
