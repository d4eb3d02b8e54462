"""From a name to a model on an engine, and the size limit."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.engines.fake_ollama import run_fake_ollama
from tipbench.cli.models import command
from tipbench.engines import check_size, open_engines
from tipbench.errors import ModelMissing, ModelRefused, Problems
from tipbench.grid import prepare_grid
from tipbench.records import Model
from tipbench.settings import Settings


def _model(parameters: int | None) -> Model:
    return Model(name="m", engine="llamacpp", digest="d", parameters=parameters, size_bytes=1)


@pytest.fixture
def home(models_folder: Path, tmp_path: Path) -> Path:
    """A data folder with real weights in it."""
    (tmp_path / "models").symlink_to(models_folder)
    return tmp_path


def test_an_admitted_model_leads_to_its_engine(home: Path) -> None:
    engines = open_engines(Settings(home=home), report=print)
    model = engines.admit("smollm2")
    assert model in engines.list_models()
    assert engines.engine_of(model).name == "llamacpp"


def test_a_model_over_the_limit_is_refused_with_both_numbers(home: Path) -> None:
    engines = open_engines(Settings(home=home, max_model_b=0.05), report=print)
    with pytest.raises(ModelRefused, match=r"0\.1 billion.*limit is 0\.05"):
        engines.admit("smollm2")


@pytest.mark.parametrize("parameters", [1, 4_000_000_000, 4_020_000_000, 4_049_999_999])
def test_the_limit_compares_one_decimal(parameters: int) -> None:
    check_size(_model(parameters), max_model_b=4.0)


@pytest.mark.parametrize("parameters", [None, 4_060_000_000, 4_300_000_000])
def test_too_big_or_unknown_is_refused(parameters: int | None) -> None:
    with pytest.raises(ModelRefused):
        check_size(_model(parameters), max_model_b=4.0)


def test_the_command_lists_models_with_size_and_admission(home: Path) -> None:
    shown = CliRunner().invoke(command, ["--home", str(home)], catch_exceptions=False).output
    assert "smollm2" in shown
    assert "135 M" in shown
    assert "98 MB" in shown
    assert "admitted" in shown
    lines = CliRunner().invoke(command, ["--home", str(home), "--max-model-b", "0.01", "--json"]).output
    listed = [json.loads(line) for line in lines.splitlines()]
    assert not any(each["admitted"] for each in listed)
    assert all("limit is 0.01" in each["reason"] for each in listed)


def test_the_command_says_how_to_get_a_first_model(tmp_path: Path) -> None:
    shown = CliRunner().invoke(command, ["--home", str(tmp_path)], catch_exceptions=False).output
    assert "tipbench models fetch smollm2" in shown


def test_fetch_with_everything_there_says_where_it_is(home: Path) -> None:
    shown = CliRunner().invoke(command, ["--home", str(home), "fetch", "smollm2"], catch_exceptions=False)
    assert "SmolLM2-135M-Instruct.Q4_1.gguf" in shown.output


def test_a_name_leads_to_its_engine(home: Path) -> None:
    with run_fake_ollama() as fake:
        engines = open_engines(Settings(home=home, ollama_url=fake.url), report=print)
        found = {
            name: engines.find_model(name).engine for name in ("m", "ollama:M", "smollm2", "llamacpp:smollm2")
        }
        with pytest.raises(ModelMissing, match="'a:1b' is not on the Ollama server"):
            engines.find_model("a:1b")
    assert found == {
        "m": "ollama",
        "ollama:M": "ollama",
        "smollm2": "llamacpp",
        "llamacpp:smollm2": "llamacpp",
    }


def test_missing_models_are_named_together_or_left_out(home: Path) -> None:
    lines: list[str] = []
    with run_fake_ollama() as fake:
        settings = Settings(home=home, ollama_url=fake.url, models="a:1b,smollm2,b:2b,c.gguf")
        find = open_engines(settings, report=print).admit
        with pytest.raises(Problems, match=r"    ollama pull a:1b\n    ollama pull b:2b\n"):
            prepare_grid(settings, find_model=find)
        cells = prepare_grid(settings, find_model=find, skip_missing=lines.append)
        none_left = settings.model_copy(update={"models": "a:1b"})
        with pytest.raises(Problems, match="ollama pull a:1b"):
            prepare_grid(none_left, find_model=find, skip_missing=lines.append)
    assert {cell.model.name for cell in cells} == {"smollm2"}
    assert [line.split("'")[1] for line in lines] == ["a:1b", "b:2b", "c.gguf"]
