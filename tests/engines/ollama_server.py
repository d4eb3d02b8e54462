"""A real Ollama server for the tests, with SmolLM2 and variants of it in a store of its own.

`python -m tests.engines.ollama_server` builds the server if need be and fills the store.
"""

import fcntl
import hashlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

import httpx2

from tests.engines.build_ollama import build_ollama, find_ollama, ollama_folder, store_folder
from tests.engines.variants import make_variant, prepare_models
from tests.support.ports import free_port
from tests.support.waiting import eventually
from tipbench.engines.weights import KNOWN_WEIGHTS

SMOLLM2 = "smollm2:135m"
VARIANTS = {"smollm2:q8": "q8_0", "smollm2:prune6": "prune:6", "smollm2:sim2": "sim2"}
# Without a template of its own the model would get the bare prompt.
TEMPLATE = """{{- range .Messages }}<|im_start|>{{ .Role }}
{{ .Content }}<|im_end|>
{{ end }}<|im_start|>assistant
"""
IMPORT_SECONDS = 300.0


class OllamaServer:
    """A server that can be stopped, killed and started again at the same address."""

    def __init__(self, binary: Path, *, port: int, **variables: str) -> None:
        self.binary = binary
        self.url = f"http://127.0.0.1:{port}"
        self.environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(ollama_folder()),
            "OLLAMA_MODELS": str(store_folder()),
            "OLLAMA_HOST": f"127.0.0.1:{port}",
            "OLLAMA_NO_CLOUD": "1",
            "OLLAMA_NOPRUNE": "1",
            **variables,
        }
        self.groups: set[int] = set()
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Returns when it answers."""
        with tempfile.TemporaryFile() as log:
            self._process = subprocess.Popen(
                [self.binary, "serve"],
                env=self.environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
            self.groups.add(self._process.pid)
            eventually(lambda: self._answers(log), "ollama serve answers")

    def _answers(self, log: IO[bytes]) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            log.seek(0)
            raise RuntimeError(f"ollama serve ended:\n{log.read().decode(errors='replace')[-2000:]}")
        with suppress(httpx2.HTTPError):
            self.get("/api/version")
            return True
        return False

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        """Ends the server with this signal; a runner of a killed server lives on."""
        if self._process:
            self._process.send_signal(how)
            self._process.wait()

    def end(self) -> None:
        """Ends the server and everything it ever started."""
        self.stop()
        for group in self.groups:
            with suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)

    def get(self, path: str) -> httpx2.Response:
        return httpx2.get(self.url + path, timeout=30, trust_env=False).raise_for_status()

    def post(self, path: str, **body: object) -> httpx2.Response:
        answer = httpx2.post(self.url + path, json=body, timeout=IMPORT_SECONDS, trust_env=False)
        return answer.raise_for_status()

    def delete(self, name: str) -> None:
        """Takes a model out of the store."""
        body = {"model": name}
        httpx2.request(
            "DELETE", self.url + "/api/delete", json=body, timeout=30, trust_env=False
        ).raise_for_status()

    def residents(self) -> list[str]:
        """The names of the models in memory."""
        return [str(each["name"]) for each in self.get("/api/ps").json()["models"]]

    def names(self) -> list[str]:
        """The names of the models in the store."""
        return [str(each["name"]) for each in self.get("/api/tags").json()["models"]]

    def load(self, name: str, **options: object) -> None:
        """Loads as any other client would."""
        self.post("/api/generate", model=name, options=options, stream=False)

    def unload_all(self) -> None:
        """Empties the memory."""
        while names := self.residents():
            for name in names:
                self.post("/api/generate", model=name, keep_alive=0)
            time.sleep(0.1)

    def import_model(self, name: str, file: Path, *, template: str = TEMPLATE) -> None:
        """Puts a `.gguf` into the store, without any network."""
        with file.open("rb") as content:
            digest = "sha256:" + hashlib.file_digest(content, "sha256").hexdigest()
            content.seek(0)
            httpx2.post(
                f"{self.url}/api/blobs/{digest}", content=content, timeout=IMPORT_SECONDS, trust_env=False
            ).raise_for_status()
        self.post(
            "/api/create",
            model=name,
            files={file.name: digest},
            template=template,
            parameters={"stop": ["<|im_end|>"]},
            stream=False,
        )


@contextmanager
def run_ollama(**variables: str) -> Generator[OllamaServer]:
    """A server on a free port with all models of the store; it must have been built."""
    binary = find_ollama()
    if binary is None:
        raise RuntimeError("there is no Ollama server: make ollama")
    server = OllamaServer(binary, port=free_port(), **variables)
    try:
        server.start()
        _fill_store(server)
        yield server
    finally:
        server.end()


def _fill_store(server: OllamaServer) -> None:
    with (ollama_folder() / ".store.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        there = server.names()
        folder = prepare_models()
        original = folder / KNOWN_WEIGHTS["smollm2"].file_name
        if SMOLLM2 not in there:
            server.import_model(SMOLLM2, original)
        for name, recipe in VARIANTS.items():
            if name not in there:
                server.import_model(name, make_variant(original, recipe, folder=folder))


def main() -> None:
    """Builds, imports, and says where it is."""
    print(build_ollama())
    with run_ollama() as server:
        print(f"{server.get('/api/version').json()['version']}: {', '.join(sorted(server.names()))}")


if __name__ == "__main__":
    main()
