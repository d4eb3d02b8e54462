"""A portable experiment: into a file, into another MLflow, out again, and every file that is refused."""

import hashlib
import json
import lzma
import resource
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.admin.making import make_foreign
from tests.conftest import PERSON, Cli
from tests.promotion.campaign import LAZY_ONLY, Campaign, judge_sheet, read_scores
from tests.support.fault_proxy import FaultProxy, Plan
from tests.support.postgres import run_mlflow_on_postgres
from tests.support.servers import MlflowServer
from tests.tracking.writing import impatient
from tipbench.admin.demo import EXPERIMENT
from tipbench.admin.demo import bring_in as show_in_demo
from tipbench.bench.bench import Bench, open_bench
from tipbench.bench.champions import read_chain
from tipbench.bench.plans import find_plan
from tipbench.bench.sittings import Answer, Decision
from tipbench.clock import make_stamps
from tipbench.errors import (
    NewerSchema,
    PortableError,
    TipbenchError,
    TrackingRefused,
    TrackingUnavailable,
    UsageError,
)
from tipbench.judging.request import SittingRequest
from tipbench.portable.export import Exporting
from tipbench.portable.file import open_portable
from tipbench.portable.import_ import BringingIn, ImportedFile
from tipbench.portable.recorded import find_first_champion, read_origin
from tipbench.promotion.gate import Gate, GateQuestion
from tipbench.settings import Settings
from tipbench.tracking import Tracking, open_tracking
from tipbench.tracking.runs import FIRST_ID_TAG
from tipbench.workbench import open_workbench

LEVELS = {"old": 7.0, "good": 11.0, "poor": 6.0}


def ignore(done: int, of: int) -> None:
    """Nobody watches."""


@dataclass(frozen=True)
class Source:
    """A judged experiment with looks, promotions, words of people and an open sitting, in two files."""

    campaign: Campaign
    plain: Path
    with_keys: Path
    open_token: str

    @property
    def name(self) -> str:
        return self.campaign.experiment


@pytest.fixture(scope="module")
def source(mlflow_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Source]:
    folder = tmp_path_factory.mktemp("source")
    with open_tracking(Settings(home=folder / "home", mlflow_url=mlflow_url)) as tracking:
        campaign = Campaign(tracking, folder, dict(LEVELS)).collect(champion="old+v1")
        campaign.judge(blocks=4)
        campaign.judge(blocks=1, judged_by="bert")
        sitting = bench_of(tracking, campaign.experiment).evidence.sittings[-1].facts.token
        refusal = Decision(sitting=sitting, accept=False, reason="in a hurry", by=PERSON)
        campaign.judging().decide(refusal, experiment=campaign.experiment)
        assert campaign.promoting(by=PERSON).promote(GateQuestion(campaign.experiment)).outcome == "promoted"
        campaign.judging().end("enough", experiment=campaign.experiment, by=PERSON)
        campaign.judging().reopen("not yet", experiment=campaign.experiment, by=PERSON)
        token = answer_one(campaign, "carl")
        plain, with_keys = folder / "plain.tipbench", folder / "keys.tipbench"
        export(tracking, campaign.experiment, plain)
        export(tracking, campaign.experiment, with_keys, with_keys=True)
        yield Source(campaign, plain, with_keys, token)


def answer_one(campaign: Campaign, judge: str) -> str:
    """A sitting that stays open, with an answer in it; gives its token."""
    judging, name = campaign.judging(), campaign.experiment
    sitting = judging.open_sitting(SittingRequest(judge, blocks=1, sits="human"), experiment=name)
    assert sitting is not None
    item = next(item for item in sitting.waiting if "points" in item.text)
    answer = Answer(scores=read_scores(item.text), flags=dict(item.flags), reason="carl was here")
    judging.submit(sitting.token, {item.id: answer}, experiment=name)
    return sitting.token


def bench_of(tracking: Tracking, name: str) -> Bench:
    return open_bench(tracking, name, stamps=make_stamps(), fresh=True)


def export(tracking: Tracking, name: str, path: Path, *, with_keys: bool = False) -> bytes:
    Exporting(tracking, make_stamps(), ignore).run(name, path, with_keys=with_keys)
    return path.read_bytes()


def bring_in(tracking: Tracking, path: Path, home: Path, *, into: str | None = None) -> ImportedFile:
    return BringingIn(tracking, home / "locks", ignore).run(open_portable(path), into=into)


def lines_of(path: Path) -> list[bytes]:
    return lzma.decompress(path.read_bytes().partition(b"\n")[2]).splitlines()


def runs_of(path: Path, kind: str) -> list[dict[str, Any]]:
    runs = [json.loads(line) for line in lines_of(path)[1:]]
    return [run for run in runs if run["tags"]["tipbench.kind"] == kind]


def forge(path: Path, content: bytes, *, version: int = 1) -> Path:
    """A file whose checksum is right, whatever it holds."""
    first = f"tipbench experiment {version} sha256:{hashlib.sha256(content).hexdigest()}\n"
    path.write_bytes(first.encode() + content)
    return path


def check_elsewhere(source: Source, cli: Cli, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Into an MLflow that knows nothing of it: read by every command, exported the same, judged further."""
    here = cli("compare", "--experiment", source.name, "--json")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", url)
    assert cli.ok("import", str(source.with_keys), "--json").json()["experiment"] == source.name
    cli.ok("export", source.name, "again.tipbench", "--with-keys")
    assert Path("again.tipbench").read_bytes() == source.with_keys.read_bytes()
    there = cli("compare", "--experiment", source.name, "--json", "--html", "page.html")
    assert "where this experiment comes from, old+v1 was champion" in Path("page.html").read_text()
    assert there.code == here.code
    for key in ("standings", "pairs", "winner", "judged", "sittings", "tiers"):
        assert there.json()[key] == here.json()[key]
    history = [remark for remark in there.json()["remarks"] if "became champion where" in remark]
    assert [remark.split()[0] for remark in history] == ["old+v1", "good+v1"]
    gate = cli("gate", "--experiment", source.name)
    assert gate.code == 2
    assert "has no champion yet" in gate.err, "promotions are history: they put nobody in force"
    assert "anna" in cli.ok("judge", "status", "--experiment", source.name).out
    cli.ok("judge", "--experiment", source.name, "--export", "sheet.json")
    judge_sheet(Path("sheet.json"))
    cli.ok("judge", "--apply", "sheet.json")
    judged = cli("compare", "--experiment", source.name, "--json").json()
    assert judged["judged"] == judged["candidates"] == 24
    with open_workbench(Settings(home=cli.home, mlflow_url=url)) as workbench:
        shows = show_in_demo(open_portable(source.plain), workbench)
    assert shows.startswith(
        "a recorded campaign: 3 models (scripted) with 1 prompts in 4 scenarios, 24 tips; "
    )
    assert "judged blind by coding agent anna (12 verdicts), " in shows
    assert not any(arm in shows for arm in (*LEVELS, "v1")), "it stands over the heads of blind judges"
    # Who was champion where it comes from is champion there, so looks that were spent are repeated.
    for name in (source.name, EXPERIMENT):
        assert cli("gate", "--experiment", name, "--json").json()["look"] == 1, "it was spent there"


def test_a_file_goes_into_another_mlflow_and_comes_out_the_same_and_is_judged_further(
    source: Source, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = MlflowServer(tmp_path / "mlflow", "--backend-store-uri", f"sqlite:///{tmp_path}/mlflow.db")
    server.start()
    try:
        check_elsewhere(source, cli, server.url, monkeypatch)
    finally:
        server.stop()


@pytest.mark.slow
def test_a_file_goes_into_mlflow_on_postgres_and_comes_out_the_same(
    source: Source, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with run_mlflow_on_postgres(tmp_path / "mlflow") as server:
        check_elsewhere(source, cli, server.url, monkeypatch)


def test_a_copy_beside_its_source_has_a_free_name_and_its_looks_stay_spent(
    source: Source, tracking: Tracking, tmp_path: Path, experiment_name: str
) -> None:
    first, second = (bring_in(tracking, source.plain, tmp_path) for _ in range(2))
    assert (first.source, first.experiment) == (source.name, f"{source.name}-2")
    assert second.experiment == f"{source.name}-3"
    assert (first.cells, first.sittings, first.promotions) == (12, 2, 2)
    with pytest.raises(UsageError, match="is taken"):
        bring_in(tracking, source.plain, tmp_path, into=second.experiment)
    named = bring_in(tracking, source.plain, tmp_path, into=experiment_name).experiment
    assert named == experiment_name
    assert export(tracking, named, tmp_path / "again.tipbench") == source.plain.read_bytes()

    question = GateQuestion(first.experiment, against="1")
    report = Gate(tracking, make_stamps(), LAZY_ONLY).ask(question)
    assert (report.answer, report.promoted, report.look) == ("promote", "good+v1", 1)
    looks = [run for run in bench_of(tracking, first.experiment).runs if run.tags["tipbench.kind"] == "look"]
    assert [run.run_id for run in looks] == [report.look_run], "the look that came with it, and no other"
    initial = read_chain(tracking, source.campaign.pack.name).promotions[0]
    plan = find_plan(tracking, tracking.find_experiment(first.experiment), initial)
    assert plan is not None
    assert plan.taken == {0: report.look_run}
    assert read_chain(tracking, source.campaign.pack.name).in_force is not None
    assert len(read_chain(tracking, source.campaign.pack.name).promotions) == 2, "no champion came of it"


def test_a_recorded_campaign_is_brought_in_once_under_a_name_that_is_free(
    source: Source, tracking: Tracking, tmp_path: Path, mlflow_url: str, experiment_name: str
) -> None:
    bringing_in = BringingIn(tracking, tmp_path, ignore)
    make_foreign(mlflow_url, experiment_name)
    first, again = (bringing_in.run_once(open_portable(source.plain), name=experiment_name) for _ in range(2))
    assert (first.experiment, first.was_there) == (f"{experiment_name}-2", False)
    assert again == first.model_copy(update={"was_there": True})
    # Another file of the same campaign is another campaign.
    other = bringing_in.run_once(open_portable(source.with_keys), name=experiment_name)
    assert (other.experiment, other.was_there) == (f"{experiment_name}-3", False)
    bench = bench_of(tracking, first.experiment)
    first_champion = find_first_champion(bench)
    assert first_champion is not None
    assert (first_champion.arm, first_champion.reason) == ("old+v1", "the first one")
    assert read_origin(bench).models == ("good", "old", "poor")


def test_what_was_added_after_an_import_is_exported_with_it(
    source: Source, tracking: Tracking, tmp_path: Path, experiment_name: str
) -> None:
    name = bring_in(tracking, source.with_keys, tmp_path).experiment
    copy = Campaign(tracking, tmp_path, dict(LEVELS), pack=source.campaign.pack, experiment=name)
    judged = copy.judge(blocks=1, judged_by="dora")
    export(tracking, name, tmp_path / "more.tipbench", with_keys=True)
    again = bring_in(tracking, tmp_path / "more.tipbench", tmp_path, into=experiment_name).experiment
    assert (
        export(tracking, again, tmp_path / "again.tipbench", with_keys=True)
        == (tmp_path / "more.tipbench").read_bytes()
    )
    evidence = bench_of(tracking, again).evidence
    assert sum(not given.verdict.failed for given in evidence.lazy) == judged
    assert {sitting.judged_by for sitting in evidence.sittings} == {"anna", "bert", "dora"}


def test_reasons_come_with_the_keys_and_without_them_there_are_none(
    source: Source, tracking: Tracking, tmp_path: Path
) -> None:
    plain = bench_of(tracking, bring_in(tracking, source.plain, tmp_path).experiment)
    keyed = bench_of(tracking, bring_in(tracking, source.with_keys, tmp_path).experiment)
    cells = {cell.run.run_id for cell in keyed.evidence.cells}
    for blind, known in zip(plain.evidence.sittings, keyed.evidence.sittings, strict=True):
        assert plain.reasons_of(blind) == {}
        assert {cell for cell, _ in keyed.reasons_of(known)} <= cells
        assert keyed.reasons_of(known)
        with pytest.raises(TrackingRefused, match="imported without its key"):
            plain.key_of(blind)
    assert plain.evidence.damaged == keyed.evidence.damaged == ()


def test_a_file_tells_no_user_no_place_and_nothing_of_an_open_sitting(
    source: Source, mlflow_url: str
) -> None:
    for path in (source.plain, source.with_keys):
        content = b"\n".join(lines_of(path)).decode()
        for word in (PERSON, "carl", source.open_token, mlflow_url.split("//")[1], str(path.parent)):
            assert word not in content
        for word in ("mlflow-artifacts", "artifact_uri", "tipbench.attempt", "localhost", "127.0.0.1"):
            assert word not in content
        assert '"judged_by":"anna"' in content
        assert "in a hurry" in content, "what was decided, not by whom"
    assert not any("key.json" in run["files"] for run in runs_of(source.plain, "sitting"))
    assert [set(run["files"]) & {"key.json"} for run in runs_of(source.with_keys, "sitting")] == [
        {"key.json"},
        {"key.json"},
    ]
    assert not any(
        tag.startswith("verdict:") and source.open_token in tag
        for run in runs_of(source.plain, "cell")
        for tag in run["tags"]
    )


def test_the_command_says_what_it_left_out_and_files_of_others_are_not_taken(
    source: Source, cli: Cli, tmp_path: Path, experiment_name: str
) -> None:
    said = cli.ok("export", source.name, "x.tipbench").out
    assert "1 sittings that are still open" in said
    assert "12 cells, 2 sittings (without keys) and 2 promotions" in said
    assert (tmp_path / "x.tipbench").read_bytes() == source.plain.read_bytes()
    said = cli.ok("import", "x.tipbench", "--experiment", experiment_name).out
    assert f"are in experiment {experiment_name!r}" in said
    for wrong in (
        ("export", source.name, "x.json"),
        ("export", source.name, "pairs.jsonl", "--pairs", "--with-keys"),
        ("import",),
        ("import", "x.json"),
        ("import", "x.tipbench", "--pack", "tip"),
        ("import", "missing.tipbench"),
        ("import", "x.tipbench", "--experiment", source.name),
    ):
        assert cli(*wrong).code == 2, wrong


# Files that are refused. Whole: nothing is created, and the error says what is wrong.


def test_a_file_with_any_bit_altered_or_cut_anywhere_is_refused(source: Source, tmp_path: Path) -> None:
    whole, broken = source.plain.read_bytes(), tmp_path / "broken.tipbench"
    for at in range(0, len(whole), 7 if len(whole) > 4_000 else 1):
        altered = bytearray(whole)
        altered[at] ^= 1 << at % 8
        broken.write_bytes(altered)
        with pytest.raises((PortableError, NewerSchema)):
            open_portable(broken)
        broken.write_bytes(whole[:at])
        with pytest.raises(PortableError):
            open_portable(broken)
    broken.write_bytes(whole + b"\n")
    with pytest.raises(PortableError, match="cut or altered"):
        open_portable(broken)


def dump(line: dict[str, Any]) -> bytes:
    return json.dumps(line).encode()


def change_run(**changes: object) -> Callable[[list[bytes]], bytes]:
    def change(lines: list[bytes]) -> bytes:
        return b"\n".join([*lines[:-1], dump({**json.loads(lines[-1]), **changes})]) + b"\n"

    return change


def change_head(**changes: object) -> Callable[[list[bytes]], bytes]:
    def change(lines: list[bytes]) -> bytes:
        return b"\n".join([dump({**json.loads(lines[0]), **changes}), *lines[1:]]) + b"\n"

    return change


REFUSED: dict[str, tuple[Callable[[list[bytes]], bytes], str]] = {
    "a name that leads elsewhere": (change_run(files={"../../x": "y"}), "not a run that can be stored"),
    "an absolute name": (change_run(files={"/etc/x": "y"}), "not a run that can be stored"),
    "a value that MLflow would cut": (change_run(params={"x": "y" * 9_000}), "not a run that can be stored"),
    "a number that is none": (change_run(metrics={"x": float("inf")}), "not a run that can be stored"),
    "an id that is none": (change_run(id="../x"), "not a run that can be stored"),
    "a field that nobody knows": (change_run(more=1), "not a run that can be stored"),
    "a time that is none": (change_run(started_ms=-1), "not a run that can be stored"),
    "a run too many": (change_head(runs=1), "it says that it holds 1 runs"),
    "a head that is none": (change_head(experiment=""), "does not say what it holds"),
    "a run twice": (lambda lines: b"\n".join([*lines, lines[-1]]) + b"\n", "appears twice"),
    "no end of line": (b"\n".join, "something follows its end"),
    "nothing": (lambda lines: b"", "does not say what it holds"),
    "no JSON": (lambda lines: b"\n\n", "does not say what it holds"),
    "a line without end": (lambda lines: b"0" * 65_000_000, "more than any experiment"),
}


@pytest.mark.parametrize("how", REFUSED)
def test_a_forged_file_is_refused(source: Source, tmp_path: Path, how: str) -> None:
    change, why = REFUSED[how]
    content = change(lines_of(source.plain))
    forged = forge(tmp_path / "forged.tipbench", lzma.compress(content, preset=0))
    with pytest.raises(PortableError, match=why):
        open_portable(forged)


def test_what_is_packed_otherwise_is_refused(source: Source, tmp_path: Path) -> None:
    packed = source.plain.read_bytes().partition(b"\n")[2]
    hungry = [{"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": 1 << 28}]
    for content, why in (
        (packed + packed, "something follows"),
        (packed[:-20], "its end is missing|cannot be unpacked"),
        (b"PK\3\4 something else", "cannot be unpacked"),
        (b"", "its end is missing"),
        (lzma.compress(b"x", filters=hungry), "cannot be unpacked"),
    ):
        with pytest.raises(PortableError, match=why):
            open_portable(forge(tmp_path / "other.tipbench", content))
    for content in (b"", b"PK\3\4", b"\x1f\x8b\x08", b"tipbench experiment 1", b"\n" * 1000):
        (tmp_path / "foreign.tipbench").write_bytes(content)
        with pytest.raises(PortableError, match="does not begin as one"):
            open_portable(tmp_path / "foreign.tipbench")
    with pytest.raises(PortableError, match="cannot be read"):
        open_portable(tmp_path)


def test_a_file_of_a_newer_tipbench_is_refused(source: Source, tmp_path: Path) -> None:
    lines = lines_of(source.plain)
    newer = forge(tmp_path / "newer.tipbench", b"whatever", version=2)
    with pytest.raises(NewerSchema, match="version 2"):
        open_portable(newer)
    tags = json.loads(lines[-1])["tags"] | {"tipbench.schema": "2"}
    for change in (
        change_head(tipbench_schema=2),
        change_head(tipbench_schema=2, new=1),
        change_run(tags=tags),
    ):
        forged = forge(newer, lzma.compress(change(lines)))
        with pytest.raises(NewerSchema, match="schema 2"):
            open_portable(forged)


def test_a_refused_file_creates_nothing(
    source: Source, cli: Cli, tracking: Tracking, experiment_name: str
) -> None:
    Path("cut.tipbench").write_bytes(source.plain.read_bytes()[:-1])
    before = {experiment.name for experiment in tracking.list_experiments()}
    refused = cli("import", "cut.tipbench", "--experiment", experiment_name)
    assert refused.code == 2
    assert "cut or altered" in refused.err
    assert {experiment.name for experiment in tracking.list_experiments()} == before
    assert tracking.seek_experiment(experiment_name) is None


# Interruptions.


def check_unseen(tracking: Tracking, name: str) -> None:
    """Nobody takes a half import for an experiment."""
    assert name not in {experiment.name for experiment in tracking.list_experiments(also_named=name)}
    for look in (tracking.find_experiment, tracking.seek_experiment, tracking.ensure_experiment):
        with pytest.raises(TrackingRefused, match="was not finished"):
            look(name)


@pytest.mark.parametrize("after", [1, 3])
def test_an_import_that_was_interrupted_is_unseen_and_completed_by_the_same_command(
    source: Source, tracking: Tracking, tmp_path: Path, experiment_name: str, after: int
) -> None:
    stored: list[int] = []

    def interrupt(done: int, of: int) -> None:
        stored.append(done)
        if len(stored) == after:
            raise KeyboardInterrupt

    bringing_in, file = BringingIn(tracking, tmp_path, interrupt), open_portable(source.with_keys)
    with pytest.raises(TrackingUnavailable, match="not finished: stopped"):
        bringing_in.run(file, into=experiment_name)
    check_unseen(tracking, experiment_name)
    with pytest.raises(UsageError, match="is taken"):
        bring_in(tracking, source.plain, tmp_path, into=experiment_name)
    assert bring_in(tracking, source.with_keys, tmp_path, into=experiment_name).runs == file.head.runs
    again = export(tracking, experiment_name, tmp_path / "again.tipbench", with_keys=True)
    assert again == source.with_keys.read_bytes()


@pytest.mark.parametrize(
    "request_at",
    [
        *("runs/create", "runs/log-batch"),
        *(pytest.param(each, marks=pytest.mark.slow) for each in ("mlflow-artifacts", "runs/update")),
    ],
)
def test_an_import_whose_mlflow_goes_away_is_completed_without_doubles(
    source: Source,
    tracking: Tracking,
    mlflow_url: str,
    tmp_path: Path,
    experiment_name: str,
    request_at: str,
) -> None:
    with FaultProxy(mlflow_url) as proxy:
        # From the fifth request of the kind on nothing is answered, though some of it is carried out.
        more = {("", at): ("reply_lost" if at % 2 else "drop") for at in range(5, 2_000)}
        proxy.plan = Plan(only=request_at, more=more)  # pyright: ignore[reportArgumentType]
        with (
            impatient(proxy.url, tmp_path / "home", tries=2) as through,
            pytest.raises(TrackingUnavailable, match="not finished"),
        ):
            bring_in(through, source.with_keys, tmp_path, into=experiment_name)
        check_unseen(tracking, experiment_name)
        proxy.follow(Plan())
        with impatient(proxy.url, tmp_path / "home") as through:
            bring_in(through, source.with_keys, tmp_path, into=experiment_name)
    again = export(tracking, experiment_name, tmp_path / "again.tipbench", with_keys=True)
    assert again == source.with_keys.read_bytes()
    runs = tracking.search_runs([tracking.find_experiment(experiment_name).id])
    assert len({run.tags[FIRST_ID_TAG] for run in runs}) == len(runs)


def test_a_full_disk_leaves_no_half_file(source: Source, tracking: Tracking, tmp_path: Path) -> None:
    path = tmp_path / "full" / "x.tipbench"
    path.parent.mkdir()
    path.write_bytes(b"as it was")
    before, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.getsignal(signal.SIGXFSZ)
    runs = Exporting(tracking, make_stamps(), _fill_the_disk)
    try:
        with pytest.raises(TipbenchError, match="cannot be written"):
            runs.run(source.name, path, with_keys=False)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert path.read_bytes() == b"as it was"
    assert list(path.parent.iterdir()) == [path]


def _fill_the_disk(done: int, of: int) -> None:
    if done == of:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
