"""Collected experiments that are generated once in a run, and copied for every test that wants the same."""

import re
from collections.abc import Callable
from dataclasses import dataclass

from tests.support.copying import copy_champion, copy_experiment, make_once, own_server
from tipbench.bench.champions import champions_experiment
from tipbench.pack import parse_pack
from tipbench.records import Pack, content_hash
from tipbench.settings import Settings
from tipbench.tracking import Tracking, open_tracking


@dataclass(frozen=True)
class Place:
    """Where cells go, and the pack they are of."""

    tracking: Tracking
    experiment: str
    pack: Pack


def rename_pack(pack: Pack, name: str) -> Pack:
    manifest = re.sub(r'^name = ".*"$', f'name = "{name}"', pack.files["pack.toml"], flags=re.MULTILINE)
    return parse_pack({**pack.files, "pack.toml": manifest})


def copy_or_make(
    place: Place, *, make: Callable[[Place], object], alike: object, with_champion: bool = False
) -> None:
    """Fills the place: a new experiment on the tests' own server by a copy, any other as `make` does.

    What is `alike`, with the same texts in the pack, is made once in the whole run. A copy of a champion is
    that of the pack.
    """
    here = own_server()
    if not here.answers_at(place.tracking.url) or here.has_experiment(place.experiment):
        make(place)
        return
    key = content_hash([alike, with_champion, rename_pack(place.pack, "any").files])
    name, pack = f"template-{key}", rename_pack(place.pack, f"template-pack-{key}")

    def make_template() -> None:
        settings = Settings(home=here.home.with_name("template-home"), mlflow_url=place.tracking.url)
        with open_tracking(settings) as tracking:
            make(Place(tracking, name, pack))

    source = make_once(name, make_template)
    words = {pack.name: place.pack.name, pack.hash: place.pack.hash}
    copy_experiment(name, place.experiment, source=source, target=here, renamed=words)
    if with_champion:
        champions_experiment(place.tracking)
        words[name] = place.experiment
        copy_champion(pack.name, place.pack.name, source=source, target=here, renamed=words)
