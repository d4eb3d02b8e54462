"""The wait for judging: deferred, so it holds no slot. The triggerer asks `tipbench judge status`."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from airflow.sdk import BaseOperator
from airflow.triggers.base import BaseTrigger, TriggerEvent

from tipbench_airflow.command import TipbenchFailed, explain_start, tipbench_command, tipbench_environment
from tipbench_airflow.conf import bench

POLL_SECONDS = 30.0
ASK_SECONDS = 120.0
USAGE_ERROR = 2


class JudgedTrigger(BaseTrigger):
    """Asks until judging is over. MLflow may be away for a while; a question without sense ends the wait."""

    def __init__(self, experiment: str, mlflow_url: str | None, poll_seconds: float) -> None:
        super().__init__()
        self.experiment = experiment
        self.mlflow_url = mlflow_url
        self.poll_seconds = poll_seconds

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """What Airflow keeps of it: another triggerer goes on with that."""
        kept = {
            "experiment": self.experiment,
            "mlflow_url": self.mlflow_url,
            "poll_seconds": self.poll_seconds,
        }
        return f"{type(self).__module__}.{type(self).__qualname__}", kept

    def _where(self) -> list[str]:
        return bench({"experiment": self.experiment, "mlflow_url": self.mlflow_url}, os.environ)

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """One event, at the end."""
        said = ""
        while True:
            reply = await ask_tipbench("judge", "status", "--json", *self._where())
            if reply.code == USAGE_ERROR:
                yield TriggerEvent({"failed": reply.words})
                return
            line = f"no answer, asking again: {reply.words}"
            if reply.code == 0:
                status = json.loads(reply.printed)
                line = f"judged {status['judged']} of {status['candidates']}"
                if status["ended"] is not None:
                    numbers = {name: status[name] for name in ("judged", "candidates", "ended")}
                    yield TriggerEvent({"said": f"{line}: {status['ended']}"} | numbers)
                    return
            if line != said:
                self.log.info("%s", line)
                said = line
            await asyncio.sleep(self.poll_seconds)


@dataclass(frozen=True)
class Reply:
    """How a command ended, what it printed for machines, and its words for people."""

    code: int
    printed: str
    words: str


async def ask_tipbench(*arguments: str) -> Reply:
    """What the command says; its process is gone when this ends."""
    command = tipbench_command(arguments, os.environ)
    try:
        running = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=tipbench_environment(os.environ),
        )
    except OSError as error:
        return Reply(USAGE_ERROR, "", explain_start(command[0], error))
    try:
        printed, words = await asyncio.wait_for(running.communicate(), ASK_SECONDS)
    except TimeoutError:
        return Reply(-1, "", f"nothing within {ASK_SECONDS:g} s")
    finally:
        if running.returncode is None:
            running.kill()
            await running.wait()
    return Reply(running.returncode or 0, printed.decode(), words.decode(errors="replace").strip())


class WaitJudged(BaseOperator):
    """Goes on when judging of the run's experiment is over. It only reads: it takes no look at the gate."""

    ui_color = "#ffe8b3"

    def __init__(
        self, *, poll_seconds: float = POLL_SECONDS, limit: timedelta | None = None, **how: Any
    ) -> None:
        super().__init__(**how)
        self.poll_seconds = poll_seconds
        self.limit = limit

    def execute(self, context: Any) -> None:
        """Hands the wait to the triggerer."""
        conf = context["params"]
        trigger = JudgedTrigger(conf["experiment"], conf["mlflow_url"] or None, self.poll_seconds)
        self.defer(trigger=trigger, method_name="go_on", timeout=self.limit)

    def go_on(self, context: Any, event: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG002 - Airflow's signature
        """What the wait ended with."""
        if "failed" in event:
            raise TipbenchFailed(event["failed"])
        self.log.info("%s", event["said"])
        return event
