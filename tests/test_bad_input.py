"""Bad input gets a clear error and the exit codes of the design, and loses nothing."""

import http.server
import io
import json
import threading
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Cli
from tests.support.experiments import SMALL
from tests.support.sheets import fill
from tipbench.bench.bench import find_newest
from tipbench.tracking import Tracking

Sheet = Callable[[Callable[[Any], None]], str]


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["--models", "nonsense"], 2, "unknown model 'nonsense'"),
        (["--models", "smollm2", "--max-model-b", "0.01"], 2, "limit is 0.01"),
        (["--models", " , "], 2, "list of models is empty"),
        (["--models", "smollm2", "--prompts", "v9,v1"], 2, "no prompt 'v9'"),
        (["--models", "smollm2", "--prompts", ""], 2, "prompts ''"),
        (["--models", "smollm2", "--n-tips", "0"], 2, "n_tips 0"),
        (["--models", "smollm2", "--n-tips", "51"], 2, "n_tips 51"),
        (["--models", "smollm2", "--n-scenarios", "-1"], 2, "n_scenarios -1"),
        (["--models", "smollm2", "--temperature", "nan"], 2, "temperature nan"),
        (["--models", "smollm2", "--temperature", "3"], 2, "temperature 3"),
        (["--models", "smollm2", "--temperature", "warm"], 2, "'warm' is not a valid float"),
        (["--models", "smollm2", "--scenarios", "huge"], 2, "unknown scenario set 'huge'"),
        (["--models", "smollm2", "--pack", "no/such/folder"], 2, "no/such/folder"),
        (["--models", "smollm2", "--seed", "-1"], 2, "seed -1"),
        (["--models", "smollm2", "--experiment", ""], 2, "experiment ''"),
        (["--models", "smollm2", "--experiment", "x" * 501], 2, "at most 500"),
        (["--models", "smollm2", "--judge-kind", "cat"], 2, "'cat'"),
        (["--models", "smollm2", "--mlflow-url", "localhost:5000"], 2, "http://"),
    ],
)
def test_collect_refuses_bad_values_and_names_them(
    cli: Cli, arguments: list[str], code: int, says: str
) -> None:
    outcome = cli("collect", "--experiment", "never-made", *arguments)
    assert outcome.code == code, outcome.err
    assert says in outcome.err
    assert "Traceback" not in outcome.err
    assert cli("compare", "--experiment", "never-made").code == 2


def test_preflight_reports_all_problems_at_once(cli: Cli) -> None:
    outcome = cli("collect", "--models", "a,b", "--prompts", "v8", "--scenarios", "none")
    for word in ("'a'", "'b'", "'v8'", "'none'"):
        assert word in outcome.err
    assert outcome.code == 2


def test_a_broken_pack_is_refused_with_file_and_line(cli: Cli, tmp_path: Path) -> None:
    cli.ok("pack", "new", "mine")
    scenarios = tmp_path / "mine" / "scenarios.jsonl"
    scenarios.write_text(scenarios.read_text() + "{broken\n")
    lines = scenarios.read_text().count("\n")
    outcome = cli("collect", "--models", "smollm2", "--pack", "mine")
    assert outcome.code == 2
    assert f"scenarios.jsonl:{lines}:" in outcome.err


def test_a_dead_mlflow_is_named_with_what_to_do_about_what_was_typed(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome = cli("compare", "--experiment", "x", "--mlflow-url", "http://127.0.0.1:9")
    assert outcome.code == 1
    assert "127.0.0.1:9" in outcome.err
    assert "→ Start it, or remove --mlflow-url: " in outcome.err
    Path("tipbench.toml").write_text('mlflow_url = "http://127.0.0.1:9"\n', encoding="utf-8")
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    assert "remove mlflow_url in tipbench.toml: " in cli("compare").err
    for variable in ("MLFLOW_TRACKING_URI", "TIPBENCH_MLFLOW_URL"):
        monkeypatch.setenv(variable, "http://127.0.0.1:9")
        assert f"remove {variable}: " in cli("compare").err


def test_who_names_no_experiment_is_offered_the_one_collected_last(
    cli: Cli, collected: str, tracking: Tracking, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIPBENCH_EXPERIMENT", "never-made")
    newest = find_newest(tracking)
    assert newest is not None
    assert cli("compare", "--experiment", newest).code in {0, 3, 4}
    for command in (["compare"], ["gate"], ["judge", "--export", "x.json"], ["judge", "status"]):
        outcome = cli(*command)
        offered = f"→ The newest one with cells: --experiment {newest}"
        assert (outcome.code, offered in outcome.err) == (2, True), outcome.err
    named = cli("compare", "--experiment", f"{collected}x")
    assert f"Available: {collected}" in named.err, "who names one is told what is spelled alike"


@pytest.fixture
def stranger() -> Generator[str]:
    """A web server that is not MLflow."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"<html>hello</html>")

        do_POST = do_GET  # noqa: N815

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Says nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_stranger_on_the_port_is_recognised(cli: Cli, stranger: str) -> None:
    outcome = cli("compare", "--experiment", "x", "--mlflow-url", stranger)
    assert outcome.code == 1
    assert "MLflow" in outcome.err
    assert "Traceback" not in outcome.err


def test_settings_are_explained_with_their_origin(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "tipbench.toml").write_text("n_tips = 0\ncolour = 'blue'\n")
    outcome = cli("collect", "--models", "smollm2")
    assert outcome.code == 2
    assert "tipbench.toml: unknown setting 'colour'" in outcome.err
    Path("tipbench.toml").write_text('experimnet = "a"', encoding="utf-8")
    assert "'experimnet'; did you mean 'experiment'?" in cli("compare").err
    assert "n_tips 0 from" in outcome.err


@pytest.fixture
def sheet(cli: Cli, collected: str) -> Sheet:
    """A complete sheet of a fresh experiment, spoilt by the given function; gives the file's name."""
    cli.ok("judge", "--experiment", collected, "--export", "sheet.json")
    fill(Path("sheet.json"))

    def spoil(change: Callable[[Any], None]) -> str:
        content = json.loads(Path("sheet.json").read_text())
        change(content)
        Path("spoilt.json").write_text(json.dumps(content))
        return "spoilt.json"

    return spoil


def first_item(content: Any) -> Any:
    return content["sections"][0]["items"][0]


def set_score(value: object) -> Callable[[Any], None]:
    def change(content: Any) -> None:
        first_item(content)["scores"]["relevance"] = value

    return change


def alter_text(content: Any) -> None:
    first_item(content)["text"] += " Really."


def drop_item(content: Any) -> None:
    del content["sections"][0]["items"][0]


def repeat_item(content: Any) -> None:
    content["sections"][0]["items"].append(first_item(content))


def repeat_section(content: Any) -> None:
    content["sections"].append(content["sections"][0])


def drop_score(content: Any) -> None:
    del first_item(content)["scores"]["tone"]


def add_scale(content: Any) -> None:
    first_item(content)["scores"]["charm"] = 3


def drop_flag(content: Any) -> None:
    del first_item(content)["flags"]["overlong"]


def other_sitting(content: Any) -> None:
    content["sections"][0]["sitting"] = "abcdefghjkmn"


def long_reason(content: Any) -> None:
    first_item(content)["reason"] = "because " * 1000


def newer_format(content: Any) -> None:
    content["format"] = "tipbench-sheet/2"


def other_experiment(content: Any) -> None:
    content["experiment_uid"] = "0" * 32


@pytest.mark.parametrize(
    ("change", "code", "says"),
    [
        (set_score(6), 2, "relevance is 6, allowed are 1 to 5"),
        (set_score(0), 2, "relevance is 0"),
        (set_score(None), 2, "relevance is missing"),
        (set_score("4"), 2, "items[0]"),
        (set_score(True), 2, "items[0]"),
        (set_score(3.5), 2, "items[0]"),
        (alter_text, 2, "the text was altered"),
        (drop_item, 2, "is missing"),
        (repeat_item, 2, "appears 2 times"),
        (repeat_section, 2, "appears twice in the file"),
        (drop_score, 2, "tone is missing"),
        (add_scale, 2, "there is no scale 'charm'"),
        (drop_flag, 2, "flag 'overlong' is missing"),
        (other_sitting, 2, "'abcdefghjkmn' is not of experiment"),
        (long_reason, 2, "4000"),
        (newer_format, 1, "Upgrade tipbench"),
        (other_experiment, 2, "another experiment"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_spoilt_sheet_is_refused_whole(
    cli: Cli,
    sheet: Sheet,
    collected: str,
    change: Callable[[Any], None],
    code: int,
    says: str,
) -> None:
    outcome = cli("judge", "--apply", sheet(change))
    assert outcome.code == code, outcome.err
    assert says in outcome.err
    assert cli("compare", "--experiment", collected, "--json").json()["judged"] == 0
    assert (
        cli.ok("judge", "status", "--experiment", collected, "--json").json()["sittings"][0]["submissions"]
        == 0
    )


def test_every_problem_of_a_sheet_is_named_by_item(cli: Cli, sheet: Sheet) -> None:
    def change(content: Any) -> None:
        for item in content["sections"][0]["items"]:
            item["scores"]["tone"] = 9

    outcome = cli("judge", "--apply", sheet(change))
    ids = [item["id"] for item in json.loads(Path("spoilt.json").read_text())["sections"][0]["items"]]
    assert all(item_id in outcome.err for item_id in ids)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("not json", "not JSON"),
        ("[]", "not a sheet of tipbench"),
        ('{"a": 1}', "not a sheet of tipbench"),
        ("[" * 100_000, "not a sheet"),
        ("1" * 5_000, "not a sheet"),
    ],
)
def test_a_wrong_file_is_refused(cli: Cli, tmp_path: Path, content: str, says: str) -> None:
    (tmp_path / "wrong.json").write_text(content)
    outcome = cli("judge", "--apply", "wrong.json")
    assert outcome.code == 2
    assert says in outcome.err


def test_a_file_that_is_not_there_is_refused(cli: Cli) -> None:
    outcome = cli("judge", "--apply", "nowhere.json")
    assert (outcome.code, "cannot be read" in outcome.err) == (2, True)


def test_a_sheet_of_another_experiment_is_refused(cli: Cli, sheet: Sheet) -> None:
    outcome = cli("judge", "--apply", sheet(lambda _: None), "--experiment", "another")
    assert outcome.code == 2
    assert "not of 'another'" in outcome.err


def test_an_existing_file_is_never_overwritten(cli: Cli, collected: str) -> None:
    Path("sheet.json").write_text("precious")
    outcome = cli("judge", "--experiment", collected, "--export", "sheet.json")
    assert outcome.code == 2
    assert Path("sheet.json").read_text() == "precious"
    assert cli.ok("judge", "status", "--experiment", collected, "--json").json()["sittings"] == []


def test_options_before_a_subcommand_are_refused(cli: Cli) -> None:
    outcome = cli("judge", "--experiment", "x", "close", "--reason", "enough")
    assert outcome.code == 2
    assert "--experiment stands before `close`" in outcome.err


def test_options_of_the_other_mode_are_refused(cli: Cli) -> None:
    assert cli("judge", "--export", "a.json", "--close").code == 2
    assert cli("judge", "--apply", "a.json", "--next", "2").code == 2


def test_two_names_for_one_content_are_refused(cli: Cli, tmp_path: Path) -> None:
    weights = next((cli.home / "models").glob("SmolLM2*.gguf")).resolve()
    (tmp_path / "twin.gguf").symlink_to(weights)
    outcome = cli("collect", "--models", f"smollm2,{tmp_path / 'twin.gguf'}", "--experiment", "never-made")
    assert outcome.code == 2
    assert "same weights" in outcome.err


@pytest.mark.parametrize("name", ["x" * 300 + ".json", "no/such/folder/sheet.json"])
def test_an_export_to_a_place_that_cannot_be_is_refused(cli: Cli, collected: str, name: str) -> None:
    assert cli("judge", "--experiment", collected, "--export", name).code == 2


def test_judge_takes_exactly_one_mode(cli: Cli) -> None:
    for arguments in ([], ["--export", "a.json", "--apply", "b.json"]):
        outcome = cli("judge", "--experiment", "x", *arguments)
        assert outcome.code == 2
        assert "exactly one" in outcome.err


def test_an_unknown_experiment_is_a_usage_error_that_names_similar_ones(cli: Cli, collected: str) -> None:
    outcome = cli("compare", "--experiment", collected[:-1])
    assert outcome.code == 2
    assert collected in outcome.err


def test_a_full_disk_is_said_before_anything_is_generated(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    # No disk can be filled here without harm: the limit is raised above what there is.
    monkeypatch.setattr("tipbench.cli.session.ROOM_BYTES", 10**18)
    outcome = cli(*SMALL, "--experiment", "never-made")
    assert outcome.code == 1
    assert "MB are free" in outcome.err


def test_a_corrupt_model_stops_the_run_and_says_what_to_do(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "bad.gguf").write_bytes(b"GGUF" + bytes(200))
    outcome = cli("collect", "--models", str(tmp_path / "bad.gguf"), "--experiment", "never-made")
    assert outcome.code == 2
    assert "bad" in outcome.err
    assert "Traceback" not in outcome.err


@pytest.mark.parametrize(
    "arguments",
    [
        ("promote", "--initial", "smollm2+v1", "--reason", "the first", "--experiment"),
        ("champion", "rollback", "--pack"),
        ("serve", "users", "create", "--password-stdin"),
    ],
)
def test_a_machine_without_a_name_for_its_user_is_no_traceback(
    cli: Cli, collected: str, arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.getuid", lambda: 2**31 - 7)
    monkeypatch.setattr("sys.stdin", io.StringIO("a long password\n"))
    outcome = cli(*arguments, collected)
    assert (outcome.code, "set USER" in outcome.err) == (2, True), outcome.err
