"""Which options of which commands the tests use, read from their source.

A use is a call, a list or a tuple that holds a command and its options as plain words, as in
`cli.ok("judge", "--export", "sheet.json")` and `[PYTHON, "-m", "tipbench", "jobs", "list"]`. Names that stand
for words are looked up: constants of the module or of the tests' module they are imported from, variables of
the same function, and functions that hand their `*arguments` on to such a call.
"""

import ast
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import click

from tipbench.cli import group

TESTS = Path(__file__).parent.parent
ROOT = TESTS.parent
PROGRAM = {"-m", "tipbench", "tipbench.cli"}
OUTER = re.compile(r"pytest\.mark\.(slow|ollama|airflow)\b")
"""What `make test` leaves out proves nothing here."""
LOOKS_LIKE_USE = re.compile(r"\"--|\bcli\b|-m tipbench ")
"""What has none of this needs no closer look."""
REST = "*"
"""Stands for the arguments that a function hands on."""

Word = str | None
"""None: something that is not known before the test runs."""


@dataclass(frozen=True)
class Use:
    """One command with the options it was given."""

    path: tuple[str, ...]
    options: frozenset[str]
    where: str


@cache
def commands() -> dict[tuple[str, ...], click.Command]:
    """Every command by its words, groups included."""
    return dict(_walk(group, ()))


def _walk(command: click.Command, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from _walk(found, (*path, name))


def options_of(command: click.Command) -> set[str]:
    """Every long spelling, `--no-…` too."""
    given = [option for option in command.params if isinstance(option, click.Option)]
    return {name for option in given for name in (*option.opts, *option.secondary_opts) if name[:2] == "--"}


def find_uses(files: Iterable[Path], *, read: Callable[[Path], str] = Path.read_text) -> list[Use]:
    """Every use in these test modules, and in the README, whose commands a test runs."""
    modules = _Modules(read)
    found = [use for file in files for use in _uses_of(modules.read(file), modules)]
    return found + _readme_uses()


def _readme_uses() -> list[Use]:
    lines = re.findall(r"^\$ tipbench (.*)$", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    return [use for line in lines if (use := _as_use(shlex.split(line, comments=True), "README.md"))]


def _as_use(words: Sequence[Word], where: str) -> Use | None:
    """The command that these words call, if they do."""
    rest = list(words)
    while rest and (rest[0] is None or rest[0] in PROGRAM):
        rest.pop(0)
    path: tuple[str, ...] = ()
    for word in rest:
        if word is not None and (*path, word) in commands():
            path = (*path, word)
        elif not isinstance(commands()[path], click.Group) or not path:
            break
    if not path and not set(rest) & options_of(group):
        return None
    given = {word.partition("=")[0] for word in rest if word and word.startswith("--")}
    return Use(path, frozenset(given & options_of(commands()[path])), where)


@dataclass
class _Module:
    path: Path
    text: str
    tree: ast.Module
    constants: dict[str, ast.expr] = field(default_factory=dict[str, ast.expr])
    functions: dict[str, ast.FunctionDef] = field(default_factory=dict[str, ast.FunctionDef])
    imports: dict[str, str] = field(default_factory=dict[str, str])
    """Name → module of the tests that it comes from."""
    commands: dict[str, str] = field(default_factory=dict[str, str])
    """Name → the command whose module it comes from."""


class _Modules:
    """Test modules, each parsed once."""

    def __init__(self, read: Callable[[Path], str]) -> None:
        self._text_of = read
        self._read: dict[Path, _Module] = {}

    def read(self, path: Path) -> _Module:
        if path not in self._read:
            self._read[path] = _parse(path, self._text_of(path))
        return self._read[path]

    def named(self, dotted: str) -> _Module:
        path = ROOT.joinpath(*dotted.split("."))
        return self.read(path / "__init__.py" if path.is_dir() else path.with_suffix(".py"))


def _parse(path: Path, text: str) -> _Module:
    module = _Module(path, text, ast.parse(text))
    for node in ast.walk(module.tree):
        if isinstance(node, ast.FunctionDef):
            module.functions[node.name] = node
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tests."):
            module.imports |= {alias.asname or alias.name: str(node.module) for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tipbench.cli."):
            command = str(node.module).removeprefix("tipbench.cli.")
            module.commands |= {alias.asname or alias.name: command for alias in node.names}
    for node in module.tree.body:
        module.constants |= _assigned(node)
    return module


def _assigned(node: ast.AST) -> dict[str, ast.expr]:
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
        return {node.targets[0].id: node.value}
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value:
        return {node.target.id: node.value}
    return {}


@dataclass(frozen=True)
class _Scope:
    """Where a word is looked up."""

    module: _Module
    modules: _Modules
    local: Mapping[str, ast.expr]
    handed_on: str | None
    """The name of `*arguments` of the function."""
    depth: int = 0

    def words(self, nodes: Iterable[ast.expr]) -> list[Word]:
        return [word for node in nodes for word in self._words(node)]

    def arguments(self, call: ast.Call) -> list[Word]:
        """The words of a call; `CliRunner().invoke(command, [words])` names its command by an import."""
        match call:
            case ast.Call(func=ast.Attribute(attr="invoke"), args=[ast.Name(id=name), given, *_]) if (
                name in self.module.commands
            ):
                rest = isinstance(given, ast.Name) and given.id == self.handed_on
                return [self.module.commands[name], *([REST] if rest else self._spread(given))]
            case _:
                return self.words(call.args)

    def _words(self, node: ast.expr) -> list[Word]:
        match node:
            case ast.Constant(value=str(text)):
                return [text]
            case ast.JoinedStr(values=[ast.Constant(value=str(text)), *_]) if text.startswith("--"):
                return [text.partition("=")[0]]
            case ast.Starred(value=ast.Name(id=name)) if name == self.handed_on:
                return [REST]
            case ast.Starred(value=value):
                return self._spread(value)
            case ast.IfExp(body=first, orelse=second):
                return self._words(first) + self._words(second)
            case ast.Name(id=name):
                found = self._look_up(name)
                return found[1].words([found[0]]) if found and isinstance(found[0], ast.Constant) else [None]
            case _:
                return [None]

    def _spread(self, node: ast.expr) -> list[Word]:
        match node:
            case ast.List(elts=parts) | ast.Tuple(elts=parts):
                return self.words(parts)
            case ast.IfExp(body=first, orelse=second):
                return self._spread(first) + self._spread(second)
            case ast.BinOp(left=left, right=right):
                return self._spread(left) + self._spread(right)
            case ast.Name(id=name) if found := self._look_up(name):
                return found[1]._spread(found[0])
            case ast.Call(func=ast.Attribute(value=ast.Constant(value=str(text)), attr="split"), args=[]):
                return list(text.split())
            case _:
                return [None]

    def _look_up(self, name: str) -> tuple[ast.expr, "_Scope"] | None:
        if self.depth > 5:
            return None
        if name in self.local:
            rest = {key: value for key, value in self.local.items() if key != name}
            return self.local[name], _Scope(self.module, self.modules, rest, None, self.depth + 1)
        home = self.modules.named(self.module.imports[name]) if name in self.module.imports else self.module
        if name in home.constants:
            return home.constants[name], _Scope(home, self.modules, {}, None, self.depth + 1)
        return None


def _uses_of(module: _Module, modules: _Modules) -> Iterator[Use]:
    outer = OUTER.search(ast.unparse(module.constants.get("pytestmark", ast.Constant(None))))
    if outer or not LOOKS_LIKE_USE.search(module.text):
        return
    where = str(module.path.relative_to(ROOT))
    for scope, node in _sequences(module, modules):
        if use := _as_use(_called_words(scope, node), where):
            yield use
    for line in re.findall(r"-m tipbench (.*)", module.text):
        # For a shell.
        if use := _as_use(line.split(), where):
            yield use


def _sequences(module: _Module, modules: _Modules) -> Iterator[tuple[_Scope, ast.expr]]:
    """Every call, list and tuple, with what its names mean there."""
    outside = _Scope(module, modules, {}, None)
    stack: list[tuple[ast.AST, _Scope]] = [(module.tree, outside)]
    while stack:
        node, scope = stack.pop()
        if isinstance(node, ast.FunctionDef):
            if any(OUTER.match(ast.unparse(decorator)) for decorator in node.decorator_list):
                continue
            scope = _inside(node, module, modules)
        if isinstance(node, ast.Call | ast.List | ast.Tuple):
            yield scope, node
        stack += [(child, scope) for child in ast.iter_child_nodes(node)]


def _inside(function: ast.FunctionDef, module: _Module, modules: _Modules) -> _Scope:
    local: dict[str, ast.expr] = {}
    for node in ast.walk(function):
        local |= _assigned(node)
    rest = function.args.vararg
    return _Scope(module, modules, local, rest.arg if rest else None)


def _called_words(scope: _Scope, node: ast.expr) -> list[Word]:
    if not isinstance(node, ast.Call):
        assert isinstance(node, ast.List | ast.Tuple)
        return scope.words(node.elts)
    words = scope.arguments(node)
    name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
    if (command := scope.module.commands.get(name)) and name == f"run_{command}":
        # What the command does, called as a function.
        return [command]
    if not any(word and word.startswith("--") for word in words):
        return words
    for before, after in _prefixes(name, scope):
        if _as_use([*before, *words, *after], ""):
            return [*before, *words, *after]
    return words


def _prefixes(name: str, scope: _Scope) -> Iterator[tuple[list[Word], list[Word]]]:
    """What a function of this name puts around the arguments that it hands on."""
    homes = [
        scope.module,
        *(scope.modules.named(each) for each in sorted(set(scope.module.imports.values()))),
    ]
    for home in homes:
        for function in filter(None, (home.functions.get(name), home.functions.get("__call__"))):
            yield from _handed_on(function, _inside(function, home, scope.modules))


def _handed_on(function: ast.FunctionDef, inside: _Scope) -> Iterator[tuple[list[Word], list[Word]]]:
    for node in ast.walk(function) if function.args.vararg else ():
        if isinstance(node, ast.Call | ast.List | ast.Tuple):
            words = inside.arguments(node) if isinstance(node, ast.Call) else inside.words(node.elts)
            if REST in words:
                place = words.index(REST)
                yield words[:place], words[place + 1 :]
