"""Champions on a real MLflow, seen through the official client: one wins, the alias is never on nothing."""

from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Barrier, Thread
from uuid import uuid4

import pytest

from tests.conftest import Cli
from tests.promotion.campaign import Campaign, make_pack
from tests.support.official import MlflowClient
from tipbench.bench.champions import (
    SUCCESSOR,
    PromotionFacts,
    champions_experiment,
    entry_name,
    promotion_write,
    read_chain,
)
from tipbench.errors import NoChampion, PromotionLost, TipbenchError, TrackingRefused, UsageError
from tipbench.promotion.gate import make_arm
from tipbench.promotion.promote import ChampionReport
from tipbench.promotion.succession import InForce, settle, succeed
from tipbench.settings import Settings
from tipbench.tracking import Tracking, open_tracking
from tipbench.tracking.runs import blank_write

WHY = "because the test says so"


@pytest.fixture(scope="module")
def arms(mlflow_url: str, tmp_path_factory: pytest.TempPathFactory) -> Campaign:
    """Three models with one prompt, collected once; every test takes a pack name of its own."""
    home = tmp_path_factory.mktemp("arms")
    pack = make_pack(f"pack-{uuid4().hex[:8]}", scenarios=1, prompts=("v3",))
    with open_tracking(Settings(home=home, mlflow_url=mlflow_url)) as tracking:
        return Campaign(tracking, home, {"m1": 7.0, "m2": 9.0, "m3": 11.0}, pack=pack).collect()


@pytest.fixture
def fresh(arms: Campaign, tracking: Tracking, tmp_path: Path) -> Campaign:
    """The same arms in a pack that has no champion."""
    pack = make_pack(f"pack-{uuid4().hex[:8]}", scenarios=1, prompts=("v3",))
    return Campaign(tracking, tmp_path, arms.levels, pack=pack, experiment=arms.experiment)


def prepare(campaign: Campaign, name: str, *, by: str = "anna", template: str = "") -> Callable[[], InForce]:
    """Everything a promotion of the arm begins with, read now; calling it makes the arm champion."""
    bench = campaign.gate().read(campaign.experiment)
    arm = make_arm(bench, name).model_copy(update={"pack": campaign.pack.name})
    arm = arm.model_copy(update={"template": template or arm.template})
    chain = read_chain(campaign.tracking, campaign.pack.name)
    facts = PromotionFacts(
        how="forced", arm=arm.name, arm_hash=arm.hash, pack=arm.pack, predecessor="", reason=WHY, by=by
    )
    return lambda: succeed(campaign.tracking, arm, facts, chain=chain, stamps=campaign.stamps)


def crown(campaign: Campaign, name: str, *, by: str = "anna", template: str = "") -> InForce:
    """Makes the arm champion of the campaign's pack, whatever the gate says."""
    return prepare(campaign, name, by=by, template=template)()


def official(url: str, campaign: Campaign) -> tuple[int, str, list[int]]:
    """What the official client sees: the alias's version, its text, and all versions."""
    client = MlflowClient(tracking_uri=url, registry_uri=url)
    name = entry_name(campaign.pack.name)
    champion = client.get_prompt_version_by_alias(name, "champion")
    versions = client.search_model_versions(f"name='{name}' AND tags.`mlflow.prompt.is_prompt` = 'true'")
    return champion.version, str(champion.template), sorted(int(each.version) for each in versions)


def settled(campaign: Campaign) -> InForce:
    found = settle(campaign.tracking, campaign.pack.name, stamps=campaign.stamps)
    assert found is not None
    return found


def roll_back(campaign: Campaign) -> ChampionReport:
    champion = campaign.promoting().roll_back(campaign.pack.name, reason=WHY).champion
    assert champion is not None
    return champion


def test_rollback_goes_back_to_the_model_before(fresh: Campaign, mlflow_url: str) -> None:
    crown(fresh, "m1+v3")
    assert official(mlflow_url, fresh)[0] == 1
    crown(fresh, "m2+v3")
    version, text, versions = official(mlflow_url, fresh)
    assert (version, versions) == (2, [1, 2])
    assert text == fresh.pack.prompts[0].text
    back = roll_back(fresh)
    assert (back.arm, back.version, back.how) == ("m1+v3", 1, "rollback")
    assert official(mlflow_url, fresh)[0] == 1
    # Not to and fro: before m1 there was nobody.
    with pytest.raises(UsageError, match="none to go back to"):
        roll_back(fresh)
    client = MlflowClient(tracking_uri=mlflow_url, registry_uri=mlflow_url)
    seen = client.get_prompt_version(entry_name(fresh.pack.name), "1")
    assert seen is not None
    tags = seen.tags
    assert (tags["tipbench.model"], tags["tipbench.model_digest"]) == ("m1", "sha256:m1")
    assert '"temperature":0.7' in tags["tipbench.options"]


def test_a_chat_prompt_is_a_chat_prompt_to_the_official_client(fresh: Campaign, mlflow_url: str) -> None:
    client = MlflowClient(tracking_uri=mlflow_url, registry_uri=mlflow_url)
    name = entry_name(fresh.pack.name)
    body = "{{persona}} {{n_tips}}\n{{diversity}}"
    chat = f"---\nform: json\n---\n# system\nBe kind.\n# user\n{body}\n"
    for template in (chat, chat, f"---\nform: json\n---\n{body}\n", f"---\nform: list\n---\n{body}\n"):
        crown(fresh, "m1+v3", template=template)
    versions = [client.get_prompt_version(name, number) for number in ("1", "2", "3")]
    assert client.get_prompt_version_by_alias(name, "champion").version == 3, "the same twice is one version"
    first, second, third = (each for each in versions if each is not None)
    assert first.template == [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": body},
    ]
    assert first.variables == {"persona", "n_tips", "diversity"}
    assert (first.is_text_prompt, second.is_text_prompt, third.is_text_prompt) == (False, True, True)
    assert second.template == third.template == body
    assert first.response_format == second.response_format
    assert (first.response_format or {})["properties"]["tips"]["minItems"] == fresh.n_tips
    assert third.response_format is None


def test_a_champion_again_has_its_old_version(fresh: Campaign, mlflow_url: str) -> None:
    for name in ("m1+v3", "m2+v3", "m1+v3"):
        crown(fresh, name)
    assert official(mlflow_url, fresh)[::2] == (1, [1, 2])
    assert roll_back(fresh).arm == "m2+v3"


def test_a_second_rollback_goes_back_further_not_to_whom_the_first_one_removed(fresh: Campaign) -> None:
    for name in ("m1+v3", "m2+v3", "m3+v3"):
        crown(fresh, name)
    assert [roll_back(fresh).arm, roll_back(fresh).arm] == ["m2+v3", "m1+v3"]
    assert settled(fresh).arm.name == "m1+v3"


def test_of_two_at_once_one_wins_and_the_other_is_told_who(fresh: Campaign, mlflow_url: str) -> None:
    check_pairs(fresh, mlflow_url, pairs=3)


@pytest.mark.slow
def test_of_fifty_pairs_at_once_one_wins_each(fresh: Campaign, mlflow_url: str) -> None:
    check_pairs(fresh, mlflow_url, pairs=50)


def check_pairs(fresh: Campaign, url: str, *, pairs: int) -> None:
    """Two clients that know of the same champion promote at once: one wins, the other hears of it."""
    homes = [fresh.home / "first", fresh.home / "second"]
    clients = [open_tracking(Settings(home=home, mlflow_url=url)) for home in homes]
    for number in range(pairs):
        pack = make_pack(f"pack-{uuid4().hex[:8]}", scenarios=1, prompts=("v3",))
        sides = [
            Campaign(client, home, fresh.levels, pack=pack, experiment=fresh.experiment)
            for client, home in zip(clients, homes, strict=True)
        ]
        if number % 2:
            # The first champion is made at once in every other pair, the second one in the others.
            crown(sides[0], "m1+v3", by="before")
        won, lost = race([prepare(sides[0], "m1+v3", by="anna"), prepare(sides[1], "m2+v3", by="bert")])
        assert len(won) == len(lost) == 1
        assert f"by {won[0].promotion.facts.by}" in lost[0].message
        chain = read_chain(fresh.tracking, pack.name)
        assert len(chain.promotions) == 1 + number % 2
        assert settled(sides[1]).promotion.run.run_id == won[0].promotion.run.run_id
        assert official(url, sides[0])[0] == won[0].version
    for client in clients:
        client.close()


def race(acts: Sequence[Callable[[], InForce]]) -> tuple[list[InForce], list[PromotionLost]]:
    """All of them at the same moment."""
    start, won, lost = Barrier(len(acts)), list[InForce](), list[PromotionLost]()

    def run(act: Callable[[], InForce]) -> None:
        start.wait()
        try:
            won.append(act())
        except PromotionLost as error:
            lost.append(error)

    threads = [Thread(target=run, args=(act,)) for act in acts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return won, lost


def test_a_promotion_against_an_old_champion_is_lost(fresh: Campaign) -> None:
    crown(fresh, "m1+v3")
    old = read_chain(fresh.tracking, fresh.pack.name)
    crown(fresh, "m2+v3", by="bert")
    bench = fresh.gate().read(fresh.experiment)
    arm = make_arm(bench, "m1+v3").model_copy(update={"pack": fresh.pack.name})
    facts = PromotionFacts(how="gate", arm=arm.name, arm_hash=arm.hash, pack=arm.pack, predecessor="")
    with pytest.raises(PromotionLost, match="by bert"):
        succeed(fresh.tracking, arm, facts, chain=old, stamps=fresh.stamps)
    assert settled(fresh).arm.name == "m2+v3"


def test_what_was_killed_after_its_claim_is_finished_by_whoever_comes(
    fresh: Campaign, mlflow_url: str
) -> None:
    first = crown(fresh, "m1+v3")
    bench = fresh.gate().read(fresh.experiment)
    arm = make_arm(bench, "m2+v3").model_copy(update={"pack": fresh.pack.name})
    facts = PromotionFacts(
        how="forced",
        arm=arm.name,
        arm_hash=arm.hash,
        pack=arm.pack,
        predecessor=first.promotion.run.run_id,
    )
    blank = blank_write(champions_experiment(fresh.tracking), fresh.stamps)
    run_id = fresh.tracking.deliver(promotion_write(facts, arm, write=blank))
    assert settled(fresh).arm.name == "m1+v3", "prepared is not in force"
    assert fresh.tracking.claim(first.promotion.run.run_id, SUCCESSOR, run_id) == run_id
    found = settled(fresh)
    assert (found.arm.name, found.version) == ("m2+v3", 2)
    assert official(mlflow_url, fresh)[0] == 2
    assert fresh.tracking.read_run(run_id).tags["tipbench.state"] == "done"


def test_what_was_deleted_or_edited_in_mlflow_is_put_right(fresh: Campaign, mlflow_url: str) -> None:
    crown(fresh, "m1+v3")
    client = MlflowClient(tracking_uri=mlflow_url, registry_uri=mlflow_url)
    name = entry_name(fresh.pack.name)
    client.delete_prompt_alias(name, "champion")
    assert "on version 1 again" in settled(fresh).remarks[0]
    client.delete_prompt_version(name, "1")
    assert settled(fresh).version == 2
    client.set_prompt_version_tag(name, "2", "mlflow.prompt.text", "Another text")
    assert (settled(fresh).version, official(mlflow_url, fresh)[0]) == (3, 3)
    assert official(mlflow_url, fresh)[1] == fresh.pack.prompts[0].text
    for version in ("2", "3"):
        client.delete_prompt_version(name, version)
    client.delete_prompt(name)
    again = settled(fresh)
    assert (again.arm.name, official(mlflow_url, fresh)[0]) == ("m1+v3", again.version)
    assert "made again" in again.remarks[0]
    client.delete_run(again.promotion.run.run_id)
    assert settled(fresh).arm.name == "m1+v3", "deleting the run takes nothing back"
    with pytest.raises(TrackingRefused, match="cannot be followed") as refused:
        crown(fresh, "m2+v3")
    assert "restore" in refused.value.hint


def test_a_prompt_of_somebody_else_is_left_alone(fresh: Campaign, mlflow_url: str) -> None:
    client = MlflowClient(tracking_uri=mlflow_url, registry_uri=mlflow_url)
    client.register_prompt(name=entry_name(fresh.pack.name), template="Mine, {{name}}")
    with pytest.raises(TrackingRefused, match="not made by tipbench"):
        crown(fresh, "m1+v3")


def test_there_is_one_first_champion(arms: Campaign, tracking: Tracking, tmp_path: Path) -> None:
    here = Campaign(tracking, tmp_path, arms.levels, pack=arms.pack, experiment=arms.experiment)
    with pytest.raises(NoChampion):
        here.promoting().roll_back(here.pack.name, reason="")
    for act in (
        lambda: here.promoting().force("m1+v3", experiment=here.experiment, reason=WHY),
        lambda: here.promoting().name_first("m9+v3", experiment=here.experiment, reason=WHY),
    ):
        with pytest.raises(UsageError):
            act()
    here.name_first("m1+v3")
    with pytest.raises(TipbenchError, match="is champion of"):
        here.name_first("m2+v3")
    with pytest.raises(UsageError, match="already"):
        here.promoting().force("m1+v3", experiment=here.experiment, reason=WHY)
    forced = here.promoting().force("m2+v3", experiment=here.experiment, reason=WHY).champion
    assert forced is not None
    assert (forced.how, forced.reason, forced.by) == ("forced", WHY, "the test")


def point_to_itself(client: MlflowClient, end: str, first: str) -> str:
    return end


def point_back(client: MlflowClient, end: str, first: str) -> str:
    return first


def point_to_a_stranger(client: MlflowClient, end: str, first: str) -> str:
    return client.create_run(client.get_run(end).info.experiment_id).info.run_id


def point_nowhere(client: MlflowClient, end: str, first: str) -> str:
    return "not-a-run"


@pytest.mark.parametrize("point", [point_to_itself, point_back, point_to_a_stranger, point_nowhere])
def test_a_chain_that_somebody_else_wrote_into_is_named_and_begun_again(
    cli: Cli, fresh: Campaign, mlflow_url: str, point: Callable[[MlflowClient, str, str], str]
) -> None:
    crown(fresh, "m1+v3")
    crown(fresh, "m2+v3")
    first, end = (each.run.run_id for each in read_chain(fresh.tracking, fresh.pack.name).promotions)
    client = MlflowClient(tracking_uri=mlflow_url, registry_uri=mlflow_url)
    client.log_param(end, SUCCESSOR, point(client, end, first))
    pack = str(fresh.write_pack(fresh.home / "pack"))
    told = cli("champion", "--pack", pack)
    assert (told.code, f"champions of {fresh.pack.name!r} cannot be followed" in told.err) == (1, True), told
    assert f"tipbench mlflow repair --champion {fresh.pack.name} --reason" in told.err

    cli.ok("mlflow", "repair", "--champion", fresh.pack.name, "--reason", WHY)
    assert read_chain(fresh.tracking, fresh.pack.name).promotions == ()
    crown(fresh, "m3+v3")
    assert [each.facts.arm for each in read_chain(fresh.tracking, fresh.pack.name).promotions] == ["m3+v3"]
    client.delete_prompt(entry_name(fresh.pack.name))
    assert settled(fresh).arm.name == "m3+v3", "the new chain is found again, not the broken one"
    again = cli("mlflow", "repair", "--champion", fresh.pack.name, "--reason", WHY)
    assert (again.code, "nothing to repair" in again.err) == (2, True)


def test_a_new_chain_needs_a_reason_and_nothing_else(cli: Cli) -> None:
    for words in (
        ("--champion", "tip"),
        ("--reason", WHY),
        ("--champion", "tip", "--reason", WHY, "--dry-run"),
    ):
        assert cli("mlflow", "repair", *words).code == 2
