"""The commands that are struck, and what their rows begin with."""

from collections.abc import Callable

from tests.faults.driver import LEVELS, N_TIPS, Command
from tests.faults.table import Bench, Case, Subject
from tests.promotion.campaign import Campaign, judge_sheet, make_pack
from tests.support.official import MlflowClient
from tests.support.official import read_facts as read_cells_and_sittings
from tipbench.bench.champions import entry_name, read_chain
from tipbench.bench.plans import RESULT_FILE
from tipbench.judging.request import SittingRequest
from tipbench.pack import read_pack
from tipbench.settings import Settings
from tipbench.tracking import open_tracking


def read_stored(bench: Bench, case: Case) -> object:
    """What the official client reads: cells with texts and verdicts, sittings, packs."""
    return read_cells_and_sittings(bench.url, case.experiment)


def count_begun(bench: Bench, case: Case) -> int:
    """Runs of the experiment that are still open."""
    client = MlflowClient(tracking_uri=bench.url)
    found = client.get_experiment_by_name(case.experiment)
    assert found is not None
    return len(client.search_runs([found.experiment_id], "tags.`tipbench.state` = 'open'"))


def prepare_collect(bench: Bench) -> Case:
    """A name and a pack: nothing is there yet."""
    return Case(bench.new_name("collect"), str(bench.pack))


def prepare_apply(bench: Bench) -> Case:
    """Collected cells and a filled sheet."""
    name = bench.new_name("apply")
    sheet = bench.work / f"{name}.json"
    with bench.home() as home, open_tracking(Settings(home=home, mlflow_url=bench.url)) as tracking:
        made = Campaign(
            tracking,
            home,
            LEVELS,
            pack=read_pack(bench.pack),
            experiment=name,
            n_tips=N_TIPS,
        ).collect()
        made.judging().hand_out(sheet, SittingRequest("the test"), experiment=name)
    judge_sheet(sheet)
    return Case(name, str(sheet))


def prepare_decision(command: Command) -> Callable[[Bench], Case]:
    """A judged experiment whose first champion is clearly beaten; for a rollback it was replaced already."""

    def prepare(bench: Bench) -> Case:
        name = bench.new_name(command)
        pack = make_pack(name, scenarios=1 if command == "rollback" else 4)
        with bench.home() as home, open_tracking(Settings(home=home, mlflow_url=bench.url)) as tracking:
            made = Campaign(
                tracking,
                home,
                {"old": 5.0, "new": 13.0},
                pack=pack,
                experiment=name,
                n_tips=1,
            ).collect()
            made.name_first("old+v1")
            if command == "rollback":
                made.promoting().force("new+v1", experiment=name, reason="to be taken back")
            else:
                made.judge()
        return Case(name, name)

    return prepare


def see_champion(bench: Bench, case: Case) -> str:
    """The model that the alias is on, by the official client."""
    client = MlflowClient(tracking_uri=bench.url, registry_uri=bench.url)
    return str(client.get_prompt_version_by_alias(entry_name(case.last), "champion").tags["tipbench.model"])


def read_decision(bench: Bench, case: Case) -> object:
    """The chain, the spent looks with what they said, and who is champion."""
    with bench.home() as home, open_tracking(Settings(home=home, mlflow_url=bench.url)) as tracking:
        chain = read_chain(tracking, case.last)
        runs = tracking.read_runs(tracking.find_experiment(case.experiment))
        looks = {
            (name, tracking.read_artifact(tracking.read_run(run_id), RESULT_FILE))
            for plan in runs
            if plan.tags.get("tipbench.kind") == "plan"
            for name, run_id in plan.params.items()
            if name.startswith("look:")
        }
    steps = [(promotion.facts.how, promotion.facts.arm) for promotion in chain.promotions]
    return steps, sorted(looks), see_champion(bench, case)


def make_decision(command: Command, *, again: tuple[int, ...] = (0,)) -> Subject:
    """The alias is on the old champion or the new one at any time."""
    return Subject(
        command,
        prepare=prepare_decision(command),
        read=read_decision,
        look=see_champion,
        may_see=("old", "new"),
        again=again,
    )


COLLECT = Subject("collect", prepare=prepare_collect, read=read_stored, count_begun=count_begun)
APPLY = Subject("apply", prepare=prepare_apply, read=read_stored, count_begun=count_begun)
PROMOTE = make_decision("promote")
GATE = make_decision("gate")
# One whose struck run was done but for its last answer has nothing left to take back.
ROLLBACK = make_decision("rollback", again=(0, 2))
CHAMPION = {"gate": "old", "promote": "new", "rollback": "old"}
"""Who has the alias in the end."""
EVERY = (COLLECT, APPLY, PROMOTE, GATE, ROLLBACK)
