"""The texts of a cell: one file under the names that people know, and cells that have a file for each."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Cli
from tests.ranking.campaign import collect_campaign
from tests.support.fault_proxy import FaultProxy, kind_of
from tests.support.official import MlflowClient
from tests.support.scripted import ScriptedEngine
from tests.tracking.writing import impatient
from tipbench.bench.bench import Bench, open_bench
from tipbench.bench.cells import StoredTexts
from tipbench.clock import make_stamps
from tipbench.records import content_hash
from tipbench.tracking import Tracking

Store = Callable[[MlflowClient, str, str, str], None]


def read(experiment: str, tracking: Tracking) -> Bench:
    return open_bench(tracking, experiment, stamps=make_stamps())


def test_people_find_every_text_in_one_file_under_its_own_name(
    collected: str, tracking: Tracking, tmp_path: Path
) -> None:
    client = MlflowClient(tracking_uri=tracking.url)
    bench = read(collected, tracking)
    for cell in bench.evidence.cells:
        (file,) = client.list_artifacts(cell.run.run_id)  # pyright: ignore[reportUnknownMemberType]
        path = client.download_artifacts(cell.run.run_id, file.path, str(tmp_path))
        texts = json.loads(Path(path).read_text(encoding="utf-8"))
        assert list(texts) == ["candidates.json", "prompt.txt", "raw.txt", "context.json"]
        stored = bench.texts_of(cell)
        assert [each["text"] for each in texts["candidates.json"]] == [
            each.text for each in stored.candidates
        ]
        assert ("\n".join(texts["prompt.txt"]), "\n".join(texts["raw.txt"])) == (stored.prompt, stored.raw)
        assert len(texts["prompt.txt"]) > 1, "line by line, so that people can read it"
        scenario = next(each for each in bench.pack.scenarios if each.id == cell.facts.scenario)
        assert texts["context.json"] == json.loads(
            json.dumps({"scenario": scenario.id, "values": scenario.values})
        )


def test_a_cell_is_four_requests_and_nobody_fetches_the_pack_that_was_stored_here(
    mlflow_url: str, experiment_name: str, tmp_path: Path
) -> None:
    engine = ScriptedEngine(["one"], lambda model, prompt, rng: "1. Rest first.")
    with FaultProxy(mlflow_url) as proxy, impatient(proxy.url, tmp_path / "home") as tracking:
        pack = collect_campaign(tracking, experiment_name, scenarios=2, prompts=1, engine=engine)
        asked = Counter(map(kind_of, proxy.requests))
        assert read(experiment_name, tracking).pack == pack
        assert not [line for line in proxy.requests if kind_of(line) == "GET artifact"]
    cells, packs, files = 2, 1, len([*pack.files, "pack-files.json"])
    assert asked["PUT artifact"] == cells + files
    assert asked["POST runs/create"] == asked["POST runs/log-batch"] == cells + packs
    assert asked["POST runs/update"] == cells + packs
    assert asked["POST runs/search"] == 2, "for the plan, and when the engine is ours"


def put_file(client: MlflowClient, run_id: str, name: str, text: str) -> None:
    client.log_text(run_id, text, name)


def set_tag(client: MlflowClient, run_id: str, name: str, text: str) -> None:
    client.set_tag(run_id, f"artifact:{name}", text)


def store_as_before(texts: StoredTexts, store: Store, client: MlflowClient) -> None:
    """The cell as it was stored before 2026-11-18: each text for itself, a hash of the candidates."""
    run_id = texts.run.run_id
    candidates = json.dumps([each.model_dump() for each in texts.candidates], indent=1)
    store(client, run_id, "candidates.json", candidates)
    store(client, run_id, "prompt.txt", texts.prompt)
    store(client, run_id, "raw.txt", texts.raw)
    client.set_tag(run_id, "tipbench.candidates", content_hash(candidates))
    client.delete_tag(run_id, "tipbench.texts")


@pytest.mark.parametrize("store", [put_file, set_tag])
def test_cells_that_have_a_file_or_a_tag_for_each_text_stay_readable(
    cli: Cli, collected: str, tracking: Tracking, store: Store, base: tuple[str, Path]
) -> None:
    before = read(collected, tracking)
    known = [before.texts_of(cell) for cell in before.evidence.cells]
    said = [(each.candidates, each.prompt, each.raw) for each in known]
    for texts in known:
        store_as_before(texts, store, MlflowClient(tracking_uri=tracking.url))
    after = read(collected, tracking)
    now = [after.texts_of(cell) for cell in after.evidence.cells]
    assert [(each.candidates, each.prompt, each.raw) for each in now] == said
    cli.ok("judge", "--experiment", collected, "--export", "sheet.json")
    sheet = Path("sheet.json").read_text(encoding="utf-8")
    assert all(each.text in json.dumps(json.loads(sheet), ensure_ascii=False) for each in said[0][0])


def test_an_edited_candidate_of_an_older_cell_is_named(cli: Cli, collected: str, tracking: Tracking) -> None:
    bench = read(collected, tracking)
    client = MlflowClient(tracking_uri=tracking.url)
    for cell in bench.evidence.cells:
        store_as_before(bench.texts_of(cell), put_file, client)
        client.log_text(cell.run.run_id, "[]", "candidates.json")
    refused = cli("judge", "--experiment", collected, "--export", "sheet.json")
    assert refused.code == 1
    assert "candidates.json" in refused.err
    assert "edited" in refused.err
