"""A key goes to one origin and into no text."""

from pathlib import Path

import pytest

from tests.conftest import Cli
from tests.engines.fake_openai import SECRET, Bench, FakeOpenAi, Scripted, answer, refusal, run_fake
from tipbench.engines import open_engines
from tipbench.engines.openai.engine import OpenAiAccess, OpenAiServer, find_key
from tipbench.errors import TipbenchError, UsageError
from tipbench.settings import Settings, read_settings
from tipbench.web import Credential, normalise_url


def _keys_that_came(fake: FakeOpenAi) -> set[str | None]:
    return {asked.headers.get("authorization") for asked in fake.asked}


def test_the_key_goes_with_every_call_to_its_own_server(tmp_path: Path) -> None:
    with run_fake(answer()) as fake:
        Bench(fake, tmp_path).ask()
    assert _keys_that_came(fake) == {f"Bearer {SECRET}"}


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_an_error_and_its_target_gets_nothing(tmp_path: Path, status: int) -> None:
    with run_fake(answer()) as target:
        away = Scripted(status, {}, {"Location": f"{target.url}/chat/completions?token=x"})
        with run_fake(away) as fake, pytest.raises(TipbenchError, match="redirects to") as caught:
            Bench(fake, tmp_path).ask()
        assert target.asked == []
    assert "token" not in caught.value.message


@pytest.mark.parametrize(
    "scripted",
    [
        refusal(401, f"Incorrect API key provided: {SECRET}"),
        refusal(403, f"{SECRET[:8]} may not use this model"),
        refusal(400, f"bad header: Bearer {SECRET}"),
        refusal(400, "x" * 295 + SECRET),
        refusal(404, f"nothing for {SECRET}"),
        refusal(429, f"{SECRET} is too fast"),
        refusal(500, f"crash with {SECRET}"),
        Scripted(302, {}, {"Location": f"https://{SECRET}.example/"}),
        Scripted(200, f"<html>{SECRET}</html>".encode()),
        Scripted(400, f"<html>{SECRET}</html>".encode()),
    ],
)
def test_no_error_repeats_the_key_even_if_the_server_does(tmp_path: Path, scripted: Scripted) -> None:
    with run_fake(scripted) as fake:
        bench = Bench(fake, tmp_path)
        with pytest.raises(TipbenchError) as caught:
            bench.ask()
        texts = [caught.value.message, caught.value.hint, str(caught.value), *bench.reports]
        assert not any(SECRET[:8] in text for text in texts), texts
        assert SECRET not in repr(bench.engine.__dict__)


def test_a_key_shows_in_no_repr_and_opens_no_other_door() -> None:
    key = Credential("OPENAI_API_KEY", "https://api.openai.com", SECRET)
    with OpenAiServer(OpenAiAccess("https://elsewhere.example/v1", key)) as server:
        assert SECRET not in repr(key) + repr(OpenAiAccess("https://api.openai.com/v1", key)) + repr(
            server.__dict__
        )
    assert key.header_for("https://api.openai.com/v1") == {"Authorization": f"Bearer {SECRET}"}
    for other in ("http://api.openai.com/v1", "https://api.openai.com:8443/v1", "https://openai.com/v1"):
        assert key.header_for(other) == {}


LOCAL = "http://127.0.0.1:8080/v1"
OWN = {"TIPBENCH_OPENAI_KEY": SECRET}
GENERAL = {"OPENAI_API_KEY": SECRET}


@pytest.mark.parametrize(
    ("url", "environ", "sent"),
    [
        (LOCAL, OWN | {"TIPBENCH_OPENAI_URL": LOCAL}, True),
        (LOCAL, OWN | {"TIPBENCH_OPENAI_URL": "http://127.0.0.1:8080"}, True),
        (LOCAL, OWN | {"TIPBENCH_OPENAI_URL": "http://127.0.0.1:8081/v1"}, False),
        ("https://evil.example/v1", OWN, False),
        ("https://evil.example/v1", OWN | {"TIPBENCH_OPENAI_URL": "https://good.example/v1"}, False),
        ("https://evil.example/v1", GENERAL, False),
        (LOCAL, GENERAL, False),
        ("https://api.openai.com/v1", GENERAL, True),
        ("https://API.OpenAI.com:443/v1/", GENERAL, True),
        ("https://api.openai.com.evil.example/v1", GENERAL, False),
        ("https://api.openai.com/v1", GENERAL | {"OPENAI_BASE_URL": "https://proxy.example/v1"}, False),
        ("https://proxy.example/v1", GENERAL | {"OPENAI_BASE_URL": "https://proxy.example/v1"}, True),
        ("https://proxy.example/v1", GENERAL | {"OPENAI_BASE_URL": "https://a:b@proxy.example"}, False),
        ("https://api.openai.com/v1", {"OPENAI_API_KEY": " "}, False),
        ("https://api.openai.com/v1", {}, False),
    ],
)
def test_a_key_belongs_to_the_origin_beside_it_in_the_environment(
    url: str, environ: dict[str, str], sent: bool
) -> None:
    key = find_key(normalise_url(url, setting="openai_url"), environ)
    assert (key is not None and key.value == SECRET) is sent


def test_a_file_in_the_folder_cannot_lead_a_key_elsewhere(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIPBENCH_OPENAI_KEY", SECRET)
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    monkeypatch.delenv("TIPBENCH_OPENAI_URL", raising=False)
    with run_fake(answer()) as fake:
        Path("tipbench.toml").write_text(f"openai_url = {fake.url!r}\n")
        cli.ok("models", "--json")
    assert _keys_that_came(fake) == {None}


def test_a_key_is_taken_from_no_file(tmp_path: Path) -> None:
    (tmp_path / "tipbench.toml").write_text(f"openai_key = {SECRET!r}\n")
    with pytest.raises(UsageError, match="unknown setting 'openai_key'") as caught:
        read_settings(environ={}, folder=tmp_path)
    assert SECRET not in caught.value.message


def test_a_key_crosses_no_network_in_plain_text(tmp_path: Path) -> None:
    url = "http://gpu.example:8000/v1"
    environ = {"TIPBENCH_OPENAI_URL": url, "TIPBENCH_OPENAI_KEY": SECRET}
    with pytest.raises(UsageError, match="TIPBENCH_OPENAI_KEY is not sent") as caught:
        find_key(url, environ)
    assert SECRET not in caught.value.message + caught.value.hint


@pytest.mark.parametrize("bad", ["sk-a\nX-Evil: 1", "sk-é", "sk a", "sk-\x00"])
def test_a_broken_key_is_refused_without_showing_it(bad: str) -> None:
    with pytest.raises(UsageError, match="OPENAI_API_KEY holds") as caught:
        find_key("https://api.openai.com/v1", {"OPENAI_API_KEY": bad})
    assert bad not in caught.value.message


@pytest.mark.parametrize(
    "url", ["https://name:word@host/v1", "https://host/v1?key=word", "http:///v1", "http://host:99999/v1"]
)
def test_an_address_with_more_than_an_address_is_refused_without_showing_it(tmp_path: Path, url: str) -> None:
    with pytest.raises(UsageError, match="openai_url") as caught:
        open_engines(Settings(home=tmp_path, openai_url=url), report=print)
    assert "word" not in caught.value.message.replace("password", "")


@pytest.mark.parametrize(("said", "local"), [(None, True), (True, True), (False, False)])
def test_a_tunnel_or_proxy_on_this_machine_can_be_told_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: bool | None, local: bool
) -> None:
    with run_fake(answer()) as fake:
        settings = Settings(home=tmp_path, openai_url=fake.url, openai_local=said)
        assert open_engines(settings, report=print).admit("openai:m").local is local
