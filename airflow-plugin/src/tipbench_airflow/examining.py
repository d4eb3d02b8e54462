"""What the triggerer sees of the parts that the wait needs."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

from airflow.sdk import BaseOperator
from airflow.triggers.base import BaseTrigger, TriggerEvent

from tipbench_airflow.command import TipbenchFailed
from tipbench_airflow.conf import doctor_arguments
from tipbench_airflow.waiting import ask_tipbench


class ExamineTrigger(BaseTrigger):
    """Asks `tipbench doctor` once, in the triggerer: that it runs shows that it can be loaded there."""

    def __init__(self, mlflow_url: str | None) -> None:
        super().__init__()
        self.mlflow_url = mlflow_url

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """What Airflow keeps of it."""
        return f"{type(self).__module__}.{type(self).__qualname__}", {"mlflow_url": self.mlflow_url}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """One event: what was found."""
        arguments = doctor_arguments({"mlflow_url": self.mlflow_url}, os.environ)
        reply = await ask_tipbench(*arguments)
        if reply.code in (0, 1) and reply.printed:
            yield TriggerEvent({"host": socket.gethostname(), "findings": json.loads(reply.printed)})
        else:
            yield TriggerEvent({"failed": reply.words})


class Examine(BaseOperator):
    """What the triggerer finds of the parts that it needs."""

    def __init__(self, *, limit: timedelta | None = None, **how: Any) -> None:
        super().__init__(**how)
        self.limit = limit

    def execute(self, context: Any) -> None:
        """Hands the question to the triggerer."""
        trigger = ExamineTrigger(context["params"]["mlflow_url"] or None)
        self.defer(trigger=trigger, method_name="go_on", timeout=self.limit)

    def go_on(self, context: Any, event: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG002 - Airflow's signature
        """What was found."""
        if "failed" in event:
            raise TipbenchFailed(event["failed"])
        return event
