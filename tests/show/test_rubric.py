"""The rubric on a page and on a terminal."""

import pytest

from tipbench.judging.sheet import SheetRubric, sheet_rubric
from tipbench.pack import builtin_pack
from tipbench.show.rubric import read_points, render_markdown

HOSTILE = "<script>x</script> <b>k</b> [a](javascript:x) ![p](http://e.example/p) <http://e.example>"


def make_rubric(text: str) -> SheetRubric:
    return SheetRubric(name="r", text=text, scales={"helpful": (0, 2)}, flags=())


@pytest.mark.parametrize("before", ["", "# ", "- ", "| a |\n|:-:|\n| "])
def test_raw_html_links_and_pictures_of_a_rubric_stay_text(before: str) -> None:
    shown = render_markdown(before + HOSTILE)
    assert "&lt;script&gt;" in shown
    for tag in ("<script", "<b>", "<a", "<img", "style="):
        assert tag not in shown, tag


def test_headings_stand_below_those_of_the_page() -> None:
    shown = render_markdown("# One\n\n## Two\n\n###### Six")
    assert "<h3>One</h3>" in shown
    assert "<h4>Two</h4>" in shown
    assert "<h6>Six</h6>" in shown


def test_every_point_of_the_built_in_rubric_has_its_sentence() -> None:
    rubric = sheet_rubric(builtin_pack().rubric)
    points = read_points(rubric)
    assert set(points) == set(rubric.scales)
    assert {tuple(sorted(said)) for said in points.values()} == {(1, 2, 3, 4, 5)}
    assert points["tone"][1] == "rude, blaming, frightening, or so broken that it has no tone"


def test_the_first_table_of_a_scale_counts_and_emphasis_and_escapes_are_gone() -> None:
    text = "## Helpful\n| 0 | **no** help |\n| 2 | a \\| b, snake_case_name |\n| 2 | again |\n| 9 | beyond |"
    assert read_points(make_rubric(text)) == {"helpful": {0: "no help", 2: "a | b, snake_case_name"}}


@pytest.mark.parametrize("text", ["", "# Other\n| 1 | x |", "## helpful\nno table", "## helpful\n| 1 |"])
def test_what_cannot_be_read_is_left_out(text: str) -> None:
    assert read_points(make_rubric(text)) == {"helpful": {}}
