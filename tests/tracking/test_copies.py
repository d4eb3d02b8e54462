"""A copy that the tests make inside the server's database is what the product writes."""

import json
from pathlib import Path
from uuid import uuid4

from tests.conftest import Cli
from tests.promotion.campaign import Campaign, make_pack
from tests.support.experiments import SMALL
from tests.support.official import MEASURED, MlflowClient, read_facts
from tipbench.bench.champions import EXPERIMENT, entry_name, read_chain
from tipbench.promotion.gate import make_arm
from tipbench.promotion.succession import settle
from tipbench.tracking import Tracking

OF_ITS_OWN = {"tipbench.attempt", "tipbench.reused_from"}


def read_all(url: str, experiment: str) -> list[object]:
    """Every run with all that hangs on it but ids and times; what `collect` copies says so in a tag."""
    client = MlflowClient(tracking_uri=url)
    found = client.get_experiment_by_name(experiment)
    assert found is not None
    runs = client.search_runs([found.experiment_id])
    assert {str(run.info.artifact_uri).split(run.info.run_id)[0] for run in runs} == {
        f"{found.artifact_location}/"
    }
    return sorted(
        (
            (
                run.info.run_name, run.info.status, sorted(run.data.params.items()),
                sorted((k, v) for k, v in run.data.metrics.items() if k not in MEASURED),
                sorted((k, v) for k, v in run.data.tags.items() if k not in OF_ITS_OWN),
            )
            for run in runs
        ),
        key=repr,
    )  # fmt: skip


def test_a_copy_in_the_database_is_what_reuse_writes(
    cli: Cli, collected: str, base: tuple[str, Path], mlflow_url: str
) -> None:
    reused = f"{collected}-reused"
    cli.ok(*SMALL, "--pack", str(base[1]), "--experiment", reused, "--reuse-from", base[0])
    assert len(read_all(mlflow_url, collected)) == 3
    assert read_all(mlflow_url, collected) == read_all(mlflow_url, reused)
    assert read_facts(mlflow_url, collected) == read_facts(mlflow_url, reused)


def test_a_copy_is_a_new_experiment_for_every_cache(cli: Cli, collected: str, base: tuple[str, Path]) -> None:
    boards = [cli("compare", "--experiment", name, "--json").json() for name in (collected, base[0])]
    for board in boards:
        board.pop("experiment")
    assert boards[0] == boards[1]


def read_campaign(campaign: Campaign) -> str:
    """All that the official client sees of it and of its champion, under words that all campaigns share."""
    url, tracking, name = campaign.tracking.url, campaign.tracking, entry_name(campaign.pack.name)
    client = MlflowClient(tracking_uri=url, registry_uri=url)
    prompt = client.get_prompt_version_by_alias(name, "champion")
    entry = client.get_prompt(name)
    assert entry is not None
    chain = [
        run
        for run in tracking.read_runs(tracking.find_experiment(EXPERIMENT))
        if run.tags["tipbench.entry"] == name
    ]
    promotion = read_chain(tracking, campaign.pack.name).in_force
    assert promotion is not None
    arm = make_arm(campaign.gate().read(campaign.experiment), "old+v1")
    told = json.dumps(
        {
            "runs": read_all(url, campaign.experiment),
            "facts": read_facts(url, campaign.experiment),
            "prompt": (prompt.version, prompt.template, prompt.tags, list(prompt.aliases)),
            "entry": entry.tags,
            "chain": [
                (run.name, run.status, run.params, {k: v for k, v in run.tags.items() if k not in OF_ITS_OWN})
                for run in chain
            ],
            "arm": tracking.read_artifact(promotion.run, "arm.json"),
        },
        indent=1,
    )
    words = {
        campaign.pack.name: "PACK", campaign.pack.hash: "HASH", campaign.experiment: "EXPERIMENT",
        arm.hash: "ARM", promotion.run.run_id: "PROMOTION", promotion.facts.predecessor: "ROOT",
    }  # fmt: skip
    for word, shared in words.items():
        assert word in told
        told = told.replace(word, shared)
    return told


def test_a_copied_campaign_with_its_champion_is_what_the_product_makes(
    tracking: Tracking, tmp_path: Path
) -> None:
    made, copied = (
        Campaign(
            tracking, tmp_path, {"old": 7.0, "new": 11.0},
            pack=make_pack(f"pack-{uuid4().hex[:8]}", scenarios=2, prompts=("v1", "v2")),
        )
        for _ in range(2)
    )  # fmt: skip
    made.generate(champion="old+v1")
    copied.collect(champion="old+v1")
    assert read_campaign(copied) == read_campaign(made)
    for campaign in (made, copied):
        found = settle(tracking, campaign.pack.name, stamps=campaign.stamps)
        assert found is not None
        assert (found.remarks, found.version, found.arm.pack_hash) == ((), 1, campaign.pack.hash)
