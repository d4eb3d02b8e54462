"""The approval between gate and promotion: Airflow's own. Importing this fails before Airflow 3.1."""

from __future__ import annotations

from typing import Any

from airflow.providers.standard.operators.hitl import ApprovalOperator

try:
    from airflow.sdk.exceptions import AirflowSkipException
except ImportError:
    # Where it was before 3.2.
    from airflow.exceptions import AirflowSkipException

from tipbench_airflow.phases import approvable_arm


class ApprovePromotion(ApprovalOperator):
    """Asks whether the arm that the gate lets pass becomes champion; rejected, what follows is skipped.

    Skipped itself unless the run asks for it (`until`) and the gate lets somebody pass. The gate's words are
    put in when it runs: whatever is in them, Airflow renders no template of it.
    """

    def __init__(self, *, gate: str, **how: Any) -> None:
        super().__init__(subject="Promote the challenger?", **how)
        self.gate = gate

    def execute(self, context: Any) -> Any:
        """Puts the question and gives the slot back."""
        if context["params"]["until"] != "approve":
            raise AirflowSkipException("The run was not to ask for approval (until).")
        answer = context["ti"].xcom_pull(task_ids=self.gate)
        arm = approvable_arm(answer)
        if arm is None:
            raise AirflowSkipException("The gate lets nobody pass: there is nothing to approve.")
        self.subject = f"Make {arm} the champion?"
        self.body = answer["markdown"]
        return super().execute(context)
