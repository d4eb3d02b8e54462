"""CPU of every `--help` and of a bare Python, best of three: `python -m benchmarks.helps`."""

import resource
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from tipbench.cli import group

TIPBENCH = str(Path(sys.executable).with_name("tipbench"))


def list_commands(
    command: click.Command, ctx: click.Context, words: tuple[str, ...]
) -> Iterator[tuple[str, ...]]:
    """The words of the command and of every one below it."""
    yield words
    if isinstance(command, click.Group):
        for name in command.list_commands(ctx):
            below = command.get_command(ctx, name)
            if below is not None:
                yield from list_commands(below, ctx, (*words, name))


def measure_cpu(command: Sequence[str]) -> float:
    """User and system seconds of a process that is run once."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def best_of_three(command: Sequence[str]) -> float:
    return min(measure_cpu(command) for _ in range(3))


def main() -> None:
    """Prints a line for each, the dearest first."""
    print(f"{best_of_three([sys.executable, '-c', 'pass']):.3f} s  python -c pass")
    commands = list_commands(group, click.Context(group), ())
    found = [(best_of_three([TIPBENCH, *words, "--help"]), words) for words in commands]
    for seconds, words in sorted(found, reverse=True):
        print(f"{seconds:.3f} s  tipbench {' '.join((*words, '--help'))}")


if __name__ == "__main__":
    main()
