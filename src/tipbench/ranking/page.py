"""The report as one HTML file: nothing is loaded from anywhere, and it prints well."""

from datetime import UTC, datetime
from importlib.resources import files

from tipbench.inert import make_inert_line
from tipbench.ranking.details import Details
from tipbench.ranking.elements import Content, Html, element, join, table
from tipbench.ranking.heat import show_heat
from tipbench.ranking.page_evidence import show_contrasts, show_gate, show_judges
from tipbench.ranking.page_standings import show_costs, show_parts, show_standings, show_verdicts
from tipbench.ranking.records import Report
from tipbench.ranking.shown import conclude

# Should a text get through all the same: the browser fetches nothing and runs nothing.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
WORDS = (
    ("Composite", "the weighted sum of a judge's scores and of the flags; mean over the complete scenarios."),
    (
        "Against the best",
        "the difference with its 95 % interval. If that holds 0, this campaign cannot tell.",
    ),
    (
        "Tied for first",
        "every arm that no other one certainly beats. Overlapping intervals say another thing.",
    ),
    ("Ranks", "the places that the arm can have, right for all arms at once with 95 % certainty."),
    ("P(best)", "the chance of being the best one, by a model. For the eye: nothing is decided with it."),
    ("Lazy", "verdicts of people and coding agents, in blocks, in their own time. They decide."),
    ("Auto", "verdicts of a model. They correct for lucky draws within a cell and never move an arm."),
)


def make_page(report: Report, details: Details) -> str:
    """The whole page."""
    sections = (
        ("standings", "Standings", show_standings(report)),
        ("verdicts", "What they rest on", join((show_verdicts(report), show_parts(report)))),
        ("heat", "Model × prompt", show_heat(details)),
        ("costs", "Quality, time and length", show_costs(report)),
        ("judges", "The judges", show_judges(report, details)),
        ("candidates", "Best and worst candidates", show_contrasts(details)),
        ("gate", "The gate", show_gate(details.gate)),
        ("remarks", "Remarks", _remarks(report)),
        ("words", "How to read this", _words()),
    )
    body = element(
        "body",
        _header(report, details),
        element(
            "nav",
            *(element("a", title, href=f"#{name}") for name, title, _ in sections),
            aria_label="Contents",
        ),
        element(
            "main",
            *(
                element(
                    "section",
                    element("h2", title, id=f"{name}-title"),
                    content,
                    id=name,
                    aria_labelledby=f"{name}-title",
                )
                for name, title, content in sections
            ),
        ),
        element(
            "footer",
            "Made by tipbench from what is stored in MLflow. Nothing in this file is loaded from elsewhere.",
        ),
    )
    return "<!doctype html>\n" + element("html", _head(report), body, lang="en") + "\n"


def _head(report: Report) -> Html:
    css = files("tipbench.ranking").joinpath("page.css").read_text(encoding="utf-8")
    return element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=POLICY),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", f"{make_inert_line(report.experiment)}: leaderboard"),
        element("style", Html(css)),
    )


def _header(report: Report, details: Details) -> Html:
    made = datetime.fromtimestamp(details.made_ms / 1000, tz=UTC).strftime("%Y-%m-%d %H:%M")
    facts: list[tuple[str, Content]] = [
        ("candidates judged", f"{report.judged} of {report.candidates}"),
        ("waiting", "judging is closed" if report.judging_closed else str(report.waiting)),
        ("complete scenarios", str(report.scenarios)),
        (f"{report.by}s", f"{len(report.ranked)} ranked of {len(report.standings)}"),
        ("rubric", make_inert_line(f"{report.rubric}, {report.lowest:g} to {report.highest:g}")),
        ("made (UTC)", made),
    ]
    return element(
        "header",
        element("p", f"tipbench · leaderboard of {report.by}s", class_="kicker"),
        element("h1", make_inert_line(report.experiment)),
        element("p", make_inert_line(conclude(report), limit=500), class_="answer"),
        element("p", make_inert_line(report.tiers.said, limit=500)),
        element("dl", *(element("div", element("dt", name), element("dd", value)) for name, value in facts)),
    )


def _remarks(report: Report) -> Html:
    if not report.remarks:
        return element("p", "Nothing to remark.")
    return element("ul", *(element("li", make_inert_line(remark, limit=1_000)) for remark in report.remarks))


def _words() -> Html:
    return table("Words", ("word", "meaning"), WORDS)
