"""The judging desk: whose sitting it is, what is not open any more, and what is sent twice."""

from pathlib import Path
from urllib.parse import quote

import pytest

from tests.admin.conftest import HERE, PASSWORD, Site
from tests.admin.making import collect_small, routes_of
from tests.ranking.campaign import judge_lazily, open_judging
from tests.support.sheets import REFERENCES
from tipbench.admin.app import PAGES
from tipbench.judging.sheet import LiveSitting


def at(place: str, name: str) -> str:
    return f"/api/bench/{place}/{quote(name, safe='')}"


def look(site: Site, token: str, experiment: str) -> LiveSitting:
    user = site.parts.accounts.get("the-judge")
    return site.parts.sittings.look(token, experiment=experiment, user=user)


@pytest.fixture
def token(fresh_site: Site, judged: str) -> str:
    """The judge's open sitting."""
    headers = fresh_site.as_("judge")
    opened = fresh_site.client.post(at("judging/open", judged), json={}, headers=headers).json()
    assert opened["state"] == "open"
    return str(opened["sitting"])


def test_nobody_answers_in_the_place_of_another(fresh_site: Site, judged: str, token: str) -> None:
    before = look(fresh_site, token, judged)
    item = before.waiting[0]
    body = {"verdicts": [{"item": item.id, "scores": dict.fromkeys(item.scores, 3)}]}
    refused = fresh_site.client.post(
        at(f"judging/submit/{token}", judged), json=body, headers=fresh_site.as_("admin")
    )
    assert refused.status_code == 404
    assert look(fresh_site, token, judged) == before


def test_the_page_names_what_is_missing_and_what_is_not_open(
    fresh_site: Site, judged: str, token: str
) -> None:
    client, place = fresh_site.client, f"/judge/{quote(judged, safe='')}"
    client.post("/sign-in", data={"name": "the-judge", "password": PASSWORD}, headers=HERE)
    before = look(fresh_site, token, judged)
    item = before.waiting[0]
    missing = client.post(place, data={"sitting": token, "item": item.id}, headers=HERE)
    assert "has no score" in missing.text
    strange = client.post(place, data={"sitting": token, "item": "strange"}, headers=HERE)
    assert "This item is not open any more." in strange.text
    assert look(fresh_site, token, judged) == before
    scores = {f"scale.{name}": "3" for name in item.scores}
    stored = client.post(place, data={"sitting": token, "item": item.id, **scores}, headers=HERE)
    assert stored.status_code == 303
    assert look(fresh_site, token, judged).answers[item.id].scores == dict.fromkeys(item.scores, 3)


@pytest.mark.usefixtures("token")
def test_whoever_has_an_open_sitting_sees_no_page_of_its_experiment_but_the_desk(
    fresh_site: Site, judged: str
) -> None:
    client, name = fresh_site.client, quote(judged, safe="")
    client.post("/sign-in", data={"name": "the-judge", "password": PASSWORD}, headers=HERE)
    gets = [route.path for route, method, _ in routes_of(PAGES) if method == "GET"]
    pages = [
        path
        for path in gets
        if "{experiment:name}" in path and not path.startswith(("/judge/", "/practice/"))
    ]
    assert "/side/{experiment:name}" in pages
    for path in pages:
        answer = client.get(path.replace("{experiment:name}", name).replace("{run}", "none"))
        assert (answer.status_code, "open sitting" in answer.text) == (403, True), path


def test_what_is_sent_again_after_the_close_is_noted_once(fresh_site: Site, judged: str, token: str) -> None:
    sitting = look(fresh_site, token, judged)
    verdicts = [
        {"item": item.id, "scores": REFERENCES.get(item.text) or dict.fromkeys(item.scores, 3)}
        for item in sitting.section.items
    ]
    for _ in range(2):
        done = fresh_site.client.post(
            at(f"judging/submit/{token}", judged),
            json={"verdicts": verdicts},
            headers=fresh_site.as_("judge"),
        )
        assert (done.status_code, done.json()["state"]) == (200, "accepted")
    audit = fresh_site.client.get("/api/bench/audit", headers=fresh_site.as_("admin")).json()["lines"]
    assert [line["what"] for line in audit].count("sitting.accepted") == 1


def test_a_second_opinion_and_what_decides_are_asked_for_on_the_start_page(
    fresh_site: Site, experiment_name: str, tmp_path: Path
) -> None:
    opened = fresh_site.parts.mlflow.open()
    collect_small(opened.tracking, experiment_name, scenarios=1)
    judge_lazily(open_judging(opened.tracking, tmp_path), experiment_name, folder=tmp_path, blocks=2)
    client, place = fresh_site.client, f"/judge/{experiment_name}"
    client.post("/sign-in", data={"name": "the-judge", "password": PASSWORD}, headers=HERE)
    for asked, told in (({"next": "5"}, "of the 5 tips that decide"), ({"second": "50"}, "opinion on 50 %")):
        assert told in client.get(place, params=asked).text
        assert client.post(place, data={"open": "1"} | asked, headers=HERE).status_code == 303
        user = fresh_site.parts.accounts.get("the-judge")
        sitting = fresh_site.parts.sittings.find_mine(experiment=experiment_name, user=user)
        assert sitting is not None
        stored = opened.judging.open(experiment_name).find_sitting(sitting.token)
        assert stored.facts.drawn == ("second" if "second" in asked else "block")
        client.post(place, data={"close": "1", "sitting": sitting.token}, headers=HERE)
