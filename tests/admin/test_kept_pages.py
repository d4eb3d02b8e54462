"""Pages show the experiment as it is, and compute nothing anew while it has not changed."""

import sqlite3
from contextlib import closing
from pathlib import Path

from tests.admin.conftest import HERE, PASSWORD, Site
from tests.admin.making import collect_small
from tests.ranking.campaign import judge_lazily, open_judging
from tipbench.tracking import Tracking


def sign_in(site: Site) -> None:
    form = {"name": "the-viewer", "password": PASSWORD}
    assert site.client.post("/sign-in", data=form, headers=HERE).status_code == 303


def show(site: Site, experiment: str, how: str = "") -> str:
    answer = site.client.get(f"/e/{experiment}{how}")
    assert answer.status_code == 200, answer.text
    return answer.text


def sign_kept(site: Site) -> None:
    """Writes a remark into every board that is kept."""
    for path in (site.parts.settings.home / "cache").glob("*.db"):
        with closing(sqlite3.connect(path)) as database, database:
            database.execute(
                """UPDATE made SET body = replace(body, '"remarks":[', '"remarks":["it was kept",')"""
            )
            database.execute("""UPDATE made SET body = replace(body, '"it was kept",]', '"it was kept"]')""")


def test_the_board_page_shows_the_kept_board_and_a_new_one_after_a_verdict(
    fresh_site: Site, tracking: Tracking, experiment_name: str, tmp_path: Path
) -> None:
    collect_small(tracking, experiment_name)
    judging = open_judging(tracking, tmp_path)
    judge_lazily(judging, experiment_name, folder=tmp_path, blocks=2)
    sign_in(fresh_site)
    first = show(fresh_site, experiment_name)
    assert show(fresh_site, experiment_name) == first
    sign_kept(fresh_site)
    assert "it was kept" in show(fresh_site, experiment_name)
    judge_lazily(judging, experiment_name, folder=tmp_path, judged_by="ben", blocks=2)
    later = show(fresh_site, experiment_name)
    assert "it was kept" not in later
    assert later != first
    assert show(fresh_site, experiment_name, "?by=model") != later


def test_what_was_read_is_held_while_nothing_changes_and_leases_run_on(
    fresh_site: Site, tracking: Tracking, experiment_name: str, tmp_path: Path
) -> None:
    collect_small(tracking, experiment_name)
    mlflow = fresh_site.parts.mlflow
    first = mlflow.read(experiment_name)
    evidence, read_ms = first.evidence, first.now_ms
    again = mlflow.read(experiment_name)
    assert again.evidence is evidence
    assert again.now_ms > read_ms
    judge_lazily(open_judging(tracking, tmp_path), experiment_name, folder=tmp_path, blocks=1)
    changed = mlflow.read(experiment_name)
    assert changed.evidence is not evidence
    assert changed.evidence.lazy
    for n in range(3):
        name = f"{experiment_name}-{n}"
        collect_small(tracking, name)
        assert mlflow.read(name).name == name
    assert mlflow.read(experiment_name).evidence.lazy, "what was pushed out is read again"
