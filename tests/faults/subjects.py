"""The commands that are struck, and what their rows begin with."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from tests.faults.driver import LEVELS, N_TIPS, Command
from tests.faults.table import Bench, Case, Subject
from tests.promotion.campaign import Campaign, judge_sheet, make_pack
from tests.support.official import MlflowClient
from tests.support.official import read_facts as read_cells_and_sittings
from tipbench.bench.bench import open_bench
from tipbench.bench.champions import entry_name, read_chain
from tipbench.bench.plans import RESULT_FILE
from tipbench.clock import make_stamps
from tipbench.judging.request import SittingRequest
from tipbench.judging.service import Judging
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


def prepare_cells(bench: Bench) -> Case:
    """Collected cells alone."""
    name = bench.new_name("cells")
    with bench.home() as home, open_tracking(Settings(home=home, mlflow_url=bench.url)) as tracking:
        pack = read_pack(bench.pack)
        Campaign(tracking, home, LEVELS, pack=pack, experiment=name, n_tips=N_TIPS).collect()
    return Case(name, "")


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


def prepare_words(command: Command) -> Callable[[Bench], Case]:
    """A judged experiment; its case names a content that can be retired, and the sitting."""

    def prepare(bench: Bench) -> Case:
        name = bench.new_name(command)
        with bench.home() as home, open_tracking(Settings(home=home, mlflow_url=bench.url)) as tracking:
            made = Campaign(
                tracking, home, LEVELS, pack=read_pack(bench.pack), experiment=name, n_tips=N_TIPS
            ).collect()
            made.judge()
            if command == "reopen":
                made.judging().end("enough", experiment=name)
            evidence = made.judging().open(name, fresh=True).evidence
            cell = evidence.cells[0]
            if command == "repair":
                wrong = {"judge_pending": "true", "judged_by": "nobody"}
                tracking.overrule(cell.run.run_id, metrics={"composite": 99.0}, tags=wrong, without_tags=())
        content = f"{cell.facts.scenario}@{cell.facts.scenario_hash.removeprefix('sha256:')[:12]}"
        return Case(name, f"{content} {evidence.sittings[0].facts.token}")

    return prepare


def prepare_anchors(bench: Bench) -> Case:
    """Three judges agree on everything; a copy of the pack waits for new anchors."""
    case = prepare_apply(bench)
    name = bench.new_name("pack")
    with bench.home() as home, open_tracking(Settings(home=home, mlflow_url=bench.url)) as tracking:
        judging = Judging(tracking, make_stamps(), home / "locks")
        for judge in ("anna", "bert", "carl"):
            judging.take_in(Path(case.last), experiment=None, judged_by=judge, close=False)
    return Case(case.experiment, str(shutil.copytree(bench.pack, bench.work / name)))


def read_anchors(bench: Bench, case: Case) -> object:
    """What the pack holds afterwards."""
    return sorted((anchor.text, str(anchor.scores)) for anchor in read_pack(Path(case.last)).anchors)


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


def read_what_counts(bench: Bench, case: Case) -> object:
    """Whether judging is closed, what the sitting is, which cells are retired."""
    with bench.home() as home, open_tracking(Settings(home=home, mlflow_url=bench.url)) as tracking:
        found = open_bench(tracking, case.experiment, stamps=make_stamps())
        sittings = [sitting.state for sitting in found.evidence.sittings]
        cells = sorted((cell.facts.scenario, cell.retired) for cell in found.stored_cells.values())
        return found.evidence.close_reason, sittings, cells


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


def make_word(command: Command, *, again: tuple[int, ...] = (0,), fewest_requests: int = 10) -> Subject:
    return Subject(
        command,
        prepare=prepare_words(command),
        read=read_stored,
        again=again,
        count_begun=count_begun,
        fewest_requests=fewest_requests,
    )


# One whose struck run was done but for its last answer has nothing left to retire.
RETIRE = make_word("retire", again=(0, 2))
WORDS = (RETIRE, make_word("decide"), make_word("close"), make_word("reopen"))
REPAIR = make_word("repair")
ANCHORS = Subject("anchors", prepare=prepare_anchors, read=read_anchors, fewest_requests=8)
# Killed between two words it says the first again: what is compared is what counts, not what was said.
EVERY_WORD = Subject("every_word", prepare=prepare_words("every_word"), read=read_what_counts)


def make_route(command: Command, like: Subject, *, again: tuple[int, ...] = (0,)) -> Subject:
    """A route of the panel. It waits half a minute for a late answer: that is left to the commands."""
    return replace(
        like,
        command=command,
        again=again,
        fewest_requests=5,
        faults=("drop", "reply_lost", "kill_client", "kill_server"),
    )


PANEL = (
    make_route("panel_judge", replace(APPLY, prepare=prepare_cells)),
    make_route("panel_decide", make_word("decide")),
    make_route("panel_end", EVERY_WORD),
    make_route("panel_force", replace(ROLLBACK, prepare=prepare_decision("gate")), again=(0, 1)),
    make_route("panel_rollback", ROLLBACK, again=(0, 1)),
)
EVERY = (COLLECT, APPLY, PROMOTE, GATE, ROLLBACK, *WORDS, ANCHORS, REPAIR, *PANEL)
