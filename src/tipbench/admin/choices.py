"""The API: what a run can be made of here: models, packs with their scenario sets, prompts."""

from collections import Counter
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response

from tipbench.admin.access import FreeViewer, Server
from tipbench.admin.cache import answer_record
from tipbench.admin.deps import Parts
from tipbench.admin.failures import MARKED
from tipbench.admin.offers import OfferedModel, read_offers
from tipbench.admin.paging import Limit, Page, Skip, find_next
from tipbench.grid import open_pack
from tipbench.inert import make_inert
from tipbench.jobs.records import NotThere
from tipbench.pack import builtin_pack
from tipbench.records import Pack, Record

# Whoever holds items sees none of it: the text of a prompt tells which tips are of it.
router = APIRouter(prefix="/api/bench", tags=["choices"], responses=MARKED)

PackName = Annotated[
    str, Path(min_length=1, max_length=100, description="Name of the pack.", examples=["tip"])
]
OfPack = Annotated[
    str | None,
    Query(
        min_length=1,
        max_length=100,
        description="Name of the pack; without it the one that runs use.",
        examples=["tip"],
    ),
]


class ModelLine(Record):
    """A model that an engine here offers; `refusal` says why it cannot run here now."""

    name: str
    engine: str
    parameters: int | None
    size_bytes: int
    admitted: bool
    refusal: str
    pinned: bool
    """Whether its weights are known by their digest."""
    local: bool
    """Whether it would come into the memory of this machine."""


class ModelPage(Page):
    """Models of every engine; `silent` says which engines could not be asked."""

    models: tuple[ModelLine, ...]
    silent: tuple[str, ...]


class ScenarioSet(Record):
    """So many scenarios; those that are held out are left for confirming an improvement."""

    name: str
    scenarios: int
    held_out: int


class ScaleLine(Record):
    """What is scored, in whole numbers, and how much it weighs in the composite."""

    name: str
    lowest: int
    highest: int
    weight: float


class FlagLine(Record):
    """What code decides of a tip, and what that does to the composite."""

    name: str
    weight: float


class PackLine(Record):
    """A pack of this server; runs use the one that is `in_use`."""

    name: str
    hash: str
    in_use: bool
    rubric: str
    sets: tuple[ScenarioSet, ...]
    prompts: tuple[str, ...]
    anchors: int


class PackPage(Page):
    """Packs of this server."""

    packs: tuple[PackLine, ...]


class PackDetail(PackLine):
    """A pack with its rubric."""

    rubric_text: str
    scales: tuple[ScaleLine, ...]
    flags: tuple[FlagLine, ...]


class PromptLine(Record):
    """One version of the prompt; `hash` is of its text."""

    name: str
    hash: str
    text: str


class PromptPage(Page):
    """The prompts of a pack."""

    pack: str
    prompts: tuple[PromptLine, ...]


@router.get("/models", response_model=ModelPage)
def list_models(
    request: Request, user: FreeViewer, parts: Server, limit: Limit = 100, skip: Skip = 0
) -> Response:
    """Models of every engine, with size, and whether they can run here. Loads and starts nothing."""
    offers = read_offers(parts)
    shown, total = tuple(map(_describe, offers.models[skip : skip + limit])), len(offers.models)
    page = ModelPage(
        models=shown,
        silent=tuple(map(make_inert, offers.silent)),
        total=total,
        skip=skip,
        next=find_next(skip, shown=len(shown), total=total),
    )
    return answer_record(request, page)


def _describe(offered: OfferedModel) -> ModelLine:
    model = offered.model
    facts = model.model_dump(include={"name", "engine", "parameters", "size_bytes", "pinned", "local"})
    return ModelLine(admitted=not offered.refusal, refusal=make_inert(offered.refusal), **facts)


@router.get("/packs", response_model=PackPage)
def list_packs(
    request: Request, user: FreeViewer, parts: Server, limit: Limit = 100, skip: Skip = 0
) -> Response:
    """The pack that runs use, and the built-in one."""
    packs = _read_packs(parts)
    lines = [_describe_pack(pack, in_use=pack is packs[0]) for pack in packs]
    shown = tuple(lines[skip : skip + limit])
    following = find_next(skip, shown=len(shown), total=len(lines))
    page = PackPage(packs=shown, total=len(lines), skip=skip, next=following)
    return answer_record(request, page)


@router.get("/packs/{pack}", response_model=PackDetail)
def read_pack(request: Request, user: FreeViewer, parts: Server, pack: PackName) -> Response:
    """A pack with its scenario sets, its prompts and its rubric. Of its anchors only the number."""
    packs = _read_packs(parts)
    found = _find_pack(packs, pack)
    rubric = found.rubric
    line = _describe_pack(found, in_use=found is packs[0])
    detail = PackDetail(
        **dict(line),
        rubric_text=rubric.text,
        scales=tuple(
            ScaleLine(name=each.name, lowest=each.minimum, highest=each.maximum, weight=each.weight)
            for each in rubric.scales
        ),
        flags=tuple(FlagLine(name=each.name, weight=each.weight) for each in rubric.flags),
    )
    return answer_record(request, detail)


@router.get("/prompts", response_model=PromptPage)
def list_prompts(
    request: Request,
    user: FreeViewer,
    parts: Server,
    pack: OfPack = None,
    limit: Limit = 100,
    skip: Skip = 0,
) -> Response:
    """The versions of a pack's prompt, with their texts."""
    packs = _read_packs(parts)
    found = packs[0] if pack is None else _find_pack(packs, pack)
    prompts = [
        PromptLine(name=each.name, hash=each.hash, text=make_inert(each.text)) for each in found.prompts
    ]
    shown = tuple(prompts[skip : skip + limit])
    following = find_next(skip, shown=len(shown), total=len(prompts))
    page = PromptPage(pack=found.name, prompts=shown, total=len(prompts), skip=skip, next=following)
    return answer_record(request, page)


def _read_packs(parts: Parts) -> list[Pack]:
    """The one that runs use first."""
    used, built_in = open_pack(parts.settings.pack), builtin_pack()
    return [used] if used.name == built_in.name else [used, built_in]


def _find_pack(packs: list[Pack], name: str) -> Pack:
    found = next((pack for pack in packs if pack.name == name), None)
    if found is None:
        names = ", ".join(repr(pack.name) for pack in packs)
        raise NotThere(f"there is no pack {name!r} here", hint=f"Available: {names}.")
    return found


def _describe_pack(pack: Pack, *, in_use: bool) -> PackLine:
    sets = Counter(each.set for each in pack.scenarios)
    held_out = Counter(each.set for each in pack.scenarios if each.held_out)
    return PackLine(
        name=pack.name,
        hash=pack.hash,
        in_use=in_use,
        rubric=pack.rubric.name,
        sets=tuple(ScenarioSet(name=name, scenarios=sets[name], held_out=held_out[name]) for name in sets),
        prompts=tuple(prompt.name for prompt in pack.prompts),
        anchors=len(pack.anchors),
    )
