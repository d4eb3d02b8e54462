"""What is in the sdist and the wheel, and what their metadata say.

usage: python -m tests.support.dist FOLDER      names what is wrong and ends with 1, or sums them up
"""

import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from email.message import Message
from email.parser import Parser
from pathlib import Path

ROOT = Path(__file__).parents[2]
EXTRAS = {"admin", "all", "judge", "local", "mcp", "serve"}


def package_files(root: Path = ROOT) -> set[str]:
    """Every file of the package, data too, as a wheel names it."""
    source = root / "src"
    found = (path for path in (source / "tipbench").rglob("*") if path.is_file())
    return {
        str(path.relative_to(source)) for path in found if path.suffix != ".pyc" and path.name != ".DS_Store"
    }


def find_faults(folder: Path) -> Iterator[str]:
    """What is wrong with the sdist and the wheel in the folder."""
    wheels, sdists = list(folder.glob("*.whl")), list(folder.glob("*.tar.gz"))
    if len(wheels) != 1 or len(sdists) != 1:
        yield f"{folder} holds {len(wheels)} wheels and {len(sdists)} sdists"
        return
    with zipfile.ZipFile(wheels[0]) as wheel:
        names = {name for name in wheel.namelist() if not name.endswith("/")}
        info = {name.partition("/")[2]: name for name in names if ".dist-info/" in name}
        yield from _compare("the wheel", names - set(info.values()), package_files())
        if missing := {"METADATA", "RECORD", "entry_points.txt", "licenses/LICENSE"} - set(info):
            yield f"the wheel lacks {sorted(missing)}"
            return
        if b"tipbench = tipbench.cli:main" not in wheel.read(info["entry_points.txt"]):
            yield "the wheel has no command `tipbench`"
        yield from _metadata_faults(Parser().parsestr(wheel.read(info["METADATA"]).decode()))
    with tarfile.open(sdists[0]) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames() if "/" in name}
        wanted = {f"src/{name}" for name in package_files()} | {"LICENSE", "README.md", "pyproject.toml"}
        held = {name for name in names if sdist.getmember(f"{sdists[0].name[:-7]}/{name}").isfile()}
        yield from _compare("the sdist", held - {"PKG-INFO", "pyproject.toml.orig"}, wanted)


def _compare(what: str, held: set[str], wanted: set[str]) -> Iterator[str]:
    if missing := wanted - held:
        yield f"{what} lacks {sorted(missing)}"
    if surplus := held - wanted:
        yield f"{what} holds what is none of the package's: {sorted(surplus)}"


def _metadata_faults(metadata: Message) -> Iterator[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    expected = {
        "Name": "tipbench",
        "Version": project["version"],
        "Summary": project["description"],
        "Requires-Python": ">=3.11",
        "License-Expression": "Apache-2.0",
        "Description-Content-Type": "text/markdown",
    }
    for name, value in expected.items():
        if metadata[name] != value:
            yield f"{name} is {metadata[name]!r}, not {value!r}"
    extras = set(metadata.get_all("Provides-Extra") or ())
    if extras != EXTRAS:
        yield f"the extras are {sorted(extras)}, not {sorted(EXTRAS)}"
    asked = metadata.get_all("Requires-Dist") or []
    plain = [line for line in asked if "extra ==" not in line]
    if len(plain) != len(project["dependencies"]):
        yield f"without an extra it wants {plain}"
    if any("litellm" in line for line in asked if "'all'" in line or '"all"' in line):
        yield "the extra `all` brings LiteLLM"
    if not str(metadata.get_payload()).startswith("# tipbench"):
        yield "the description is not the README"


def main() -> None:
    folder = Path(sys.argv[1])
    faults = list(find_faults(folder))
    for fault in faults:
        print(fault)
    if not faults:
        sizes = [f"{path.name} ({path.stat().st_size:,} bytes)" for path in sorted(folder.glob("tip*"))]
        print(f"{', '.join(sizes)}: {len(package_files())} files of the package, metadata as they should be")
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
