"""Runs in Airflow's own environment: the trigger of the wait, as a triggerer runs it, for some seconds.

usage: wait.py EXPERIMENT SECONDS. Prints one line of JSON: the event, if there was one, and what was logged.
"""

import asyncio
import json
import sys

from tipbench_airflow.waiting import JudgedTrigger


async def watch(experiment: str, seconds: float) -> dict:
    """The event, or None when it still waits."""
    lines = []
    trigger = JudgedTrigger(experiment, None, 1.0)
    trigger.log.info = lambda form, *values: lines.append(form % values)
    events = trigger.run()
    try:
        event = (await asyncio.wait_for(anext(events), seconds)).payload
    except TimeoutError:
        event = None
    return {"event": event, "lines": lines}


print(json.dumps(asyncio.run(watch(sys.argv[1], float(sys.argv[2])))))
