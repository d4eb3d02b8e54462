"""What a doctor finds out about one part."""

from tipbench.records import Record


class Finding(Record):
    """What was found out about one part; `needed` parts decide the exit code."""

    part: str
    ok: bool
    says: str
    to_do: str = ""
    needed: bool = True
