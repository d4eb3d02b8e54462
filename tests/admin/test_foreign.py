"""Experiments called as ours that another program made."""

from urllib.parse import quote
from uuid import uuid4

from tests.admin.conftest import HERE, PASSWORD, Site
from tests.admin.making import make_foreign


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


def test_experiments_of_other_programs_with_other_names_are_not_listed(
    fresh_site: Site, mlflow_url: str
) -> None:
    name = f"other-{uuid4().hex[:8]}"
    make_foreign(mlflow_url, name)
    answer = fresh_site.client.get(
        "/api/bench/experiments", params={"contains": name}, headers=fresh_site.as_("viewer")
    )
    assert answer.json()["total"] == 0
