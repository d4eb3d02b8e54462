"""The champion of a pack: who it is, how good it was over time, and how it came about.

Only experiments in which nothing is left to judge tell anything here: whoever judges may look at this page.
"""

from collections.abc import Callable

from fastapi import APIRouter, Request, Response

from tipbench.admin.access import PageFreeViewer, Server
from tipbench.admin.deps import Parts
from tipbench.admin.panel import render
from tipbench.admin.promotion import PackName
from tipbench.admin.users import User
from tipbench.errors import NoChampion, TipbenchError
from tipbench.inert import make_inert
from tipbench.promotion.history import History, read_history
from tipbench.promotion.succession import InForce, read_in_force
from tipbench.show.traces import draw_levels

pages = APIRouter(include_in_schema=False)


@pages.get("/champion")
def show_champion(request: Request, user: PageFreeViewer, parts: Server, pack: PackName = "tip") -> Response:
    """The champion with its prompt, its level in every experiment that is judged, promotions and looks."""
    tracking = parts.mlflow.open().tracking
    remarks: list[str] = []

    def pass_over(name: str, error: TipbenchError) -> None:
        remarks.append(f"{name}: {error.message}")

    history, champion = None, None
    try:
        history = _leave_out(read_history(tracking, pack, pass_over=pass_over), user, parts)
        champion = _read_champion(parts, pack, pass_over)
    except NoChampion:
        pass
    return render(
        request,
        "champion.html",
        user=user,
        pack=pack,
        history=history,
        champion=champion,
        template=make_inert(champion.arm.template) if champion else "",
        levels=draw_levels(history) if history else None,
        remarks=list(dict.fromkeys(remarks)),
    )


def _read_champion(
    parts: Parts, pack: str, pass_over: Callable[[str, TipbenchError], None]
) -> InForce | None:
    try:
        return read_in_force(parts.mlflow.open().tracking, pack)
    except TipbenchError as error:
        pass_over(pack, error)
        return None


def _leave_out(history: History, user: User, parts: Parts) -> History:
    """Without what is said of experiments that are still being judged, or that this person may not see."""
    seen: dict[str, bool] = {}

    def shows(experiment: str) -> bool:
        if experiment not in seen:
            seen[experiment] = parts.sittings.is_decided_for(user, experiment)
            if seen[experiment]:
                parts.sittings.check_sees_arms(user, experiment, what="/champion")
        return seen[experiment]

    return history.model_copy(
        update={
            "levels": tuple(line for line in history.levels if shows(line.experiment)),
            "looks": tuple(line for line in history.looks if shows(line.experiment)),
        }
    )
