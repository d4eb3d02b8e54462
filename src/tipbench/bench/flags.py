"""Flags: what code can decide about a candidate, by counting and by patterns."""

import re

from tipbench.records import FlagRule, Rubric

_WORD = re.compile(r"\w+(?:['’]\w+)*")
_SENTENCE_END = re.compile(r"[.!?…]+[\"'”’)\]*_]*(?=\s|$)")


def count_words(text: str) -> int:
    """How many parts between blanks hold a letter or a digit: `to-do` is one word, `–` is none."""
    return sum(any(character.isalnum() for character in part) for part in text.split())


def count_sentences(text: str) -> int:
    """How many ends of sentences there are (`.`, `!`, `?`, `…` before a blank), plus an open rest."""
    ends = list(_SENTENCE_END.finditer(text))
    rest = text[ends[-1].end() :] if ends else text
    return len(ends) + (count_words(rest) > 0)


def word_set(text: str) -> frozenset[str]:
    """The different words of a text, lower-cased."""
    return frozenset(_WORD.findall(text.lower()))


def obeys(text: str, rule: FlagRule) -> bool:
    """Whether all conditions of the rule hold; patterns are searched anywhere in the text."""
    words = count_words(text)
    return (
        (rule.min_words is None or words >= rule.min_words)
        and (rule.max_words is None or words <= rule.max_words)
        and (rule.max_sentences is None or count_sentences(text) <= rule.max_sentences)
        and all(re.search(pattern, text) for pattern in rule.must_match)
        and not any(re.search(pattern, text) for pattern in rule.must_not_match)
    )


def compute_flags(text: str, rubric: Rubric) -> dict[str, bool]:
    """Every flag of the rubric for this text."""
    return {flag.name: obeys(text, flag.rule) for flag in rubric.flags}
