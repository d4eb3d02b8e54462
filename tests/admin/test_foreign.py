"""Experiments called as ours that another program made."""

from urllib.parse import quote
from uuid import uuid4

from tests.admin.conftest import HERE, PASSWORD, Site
from tests.admin.making import make_foreign
from tests.support.original import Original, score
from tipbench.bench.foreign import ParamNames


def test_a_foreign_experiment_is_listed_as_such_and_opens_to_a_clear_page(
    fresh_site: Site, mlflow_url: str
) -> None:
    site, name = fresh_site, f"tip-bench-{uuid4().hex[:8]} <b>/x"
    make_foreign(mlflow_url, name)
    headers = site.as_("viewer")
    (line,) = site.client.get("/api/bench/experiments", params={"contains": name}, headers=headers).json()[
        "experiments"
    ]
    assert (line["name"], line["made_by_tipbench"]) == (name, False)
    assert [line[count] for count in ("cells", "candidates", "judged", "pending")] == [0, 0, 0, 0]
    address = quote(name, safe="")
    for place in ("runs", "leaderboard", "judging/status"):
        answer = site.client.get(f"/api/bench/{place}/{address}", headers=headers)
        assert answer.status_code == 404
        assert "holds nothing of tipbench" in answer.json()["error"]["message"]
    site.client.post("/sign-in", data={"name": "the-admin", "password": PASSWORD}, headers=HERE)
    page = site.client.get(f"/e/{address}")
    assert page.status_code == 200
    assert "tipbench did not make this experiment" in page.text
    assert "<b>" not in page.text.partition("<main")[2].partition("<h1>")[2].partition("</h1>")[0]
    for place in ("side", "judges", "promotions", "judge"):
        assert site.client.get(f"/{place}/{address}").status_code == 404


def test_an_experiment_of_the_original_is_shown_read_only(fresh_site: Site, mlflow_url: str) -> None:
    site = fresh_site
    original = Original(mlflow_url, f"prompt-ab/{uuid4().hex[:8]}").create()
    original.add("<b>m</b>", "v1", "anna", scores=score(4))
    original.add("other", "v1", "anna", scores=score(3))
    before, address = original.dump(), quote(original.name, safe="")
    board = site.client.get(f"/api/bench/leaderboard/{address}", headers=site.as_("viewer")).json()
    assert [line["cell_scores"]["composite"] for line in board["standings"]] == [14.0, 11.0]
    assert (board["winner"], board["pairs"]) == (None, [])
    site.client.post("/sign-in", data={"name": "the-admin", "password": PASSWORD}, headers=HERE)
    page = site.client.get(f"/e/{address}").text
    assert "not blind, not anchored" in page
    assert "14.00" in page
    assert f"tipbench import --experiment {original.name}" in page
    assert "<b>m</b>" not in page
    imported = site.parts.mlflow.open().importing.run(original.name, into=None, params=ParamNames())
    into = quote(imported.experiment, safe="")
    board_page = site.client.get(f"/e/{into}").text
    assert "not blind, not anchored" in board_page
    assert "14.00" in board_page
    assert "Judge now" in board_page
    for place in ("side", "judges", "promotions", "judge"):
        assert site.client.get(f"/{place}/{into}").status_code == 200, place
    assert original.dump() == before


def test_experiments_of_other_programs_with_other_names_are_not_listed(
    fresh_site: Site, mlflow_url: str
) -> None:
    name = f"other-{uuid4().hex[:8]}"
    make_foreign(mlflow_url, name)
    answer = fresh_site.client.get(
        "/api/bench/experiments", params={"contains": name}, headers=fresh_site.as_("viewer")
    )
    assert answer.json()["total"] == 0
