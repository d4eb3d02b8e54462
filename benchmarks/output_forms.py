"""How many slots a model fills per prompt and output form: the core scenarios of `tip`, several seeds.

`python -m benchmarks.output_forms [--models smollm2] [--prompts v1,v4-json] [--seeds 5] [--pack tip]` prints
a table for docs/benchmarks.md. Nothing is stored.
"""

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import fmean

from tipbench.collect.candidates import NO_TIP, parse_candidates
from tipbench.engines import open_engines
from tipbench.engines.protocol import Engine
from tipbench.errors import GenerationFailed
from tipbench.grid import Cell, open_pack, prepare_grid
from tipbench.records import Candidate, Generation
from tipbench.settings import Settings, read_settings


@dataclass(frozen=True)
class FormAnswer:
    """One cell, answered."""

    cell: Cell
    candidates: tuple[Candidate, ...]
    generation: Generation

    @property
    def form(self) -> str:
        return "list" if self.cell.question.form is None else "json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default="smollm2")
    parser.add_argument("--pack", default="tip")
    parser.add_argument("--prompts")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--threads", type=int)
    given = parser.parse_args()
    prompts = given.prompts or ",".join(prompt.name for prompt in open_pack(given.pack).prompts)
    chosen = {"models": given.models, "prompts": prompts, "pack": given.pack, "threads": given.threads}
    settings = read_settings({**chosen, "scenarios": "core"})
    answers = list(answer_all(settings, seeds=given.seeds))
    print("| model | prompt | form | slots | filled | format_ok | cut off | tokens a cell | seconds a cell |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for model, prompt in dict.fromkeys((a.cell.model.name, a.cell.prompt.name) for a in answers):
        row = [a for a in answers if (a.cell.model.name, a.cell.prompt.name) == (model, prompt)]
        print(f"| {model} | {prompt} | {row[0].form} | {describe(row)} |")


def answer_all(settings: Settings, *, seeds: int) -> Iterator[FormAnswer]:
    """Every cell of every seed, model by model."""
    with open_engines(settings, report=lambda line: print(line, file=sys.stderr)) as engines:
        grids = [
            prepare_grid(settings.model_copy(update={"seed": seed}), find_model=engines.admit)
            for seed in range(seeds)
        ]
        for model in dict.fromkeys(cell.model for cell in grids[0]):
            cells = [cell for grid in grids for cell in grid if cell.model == model]
            yield from _answer_model(cells, engines.engine_of(model))


def _answer_model(cells: list[Cell], engine: Engine) -> Iterator[FormAnswer]:
    with engine.load(cells[0].model) as loaded:
        for cell in cells:
            try:
                generation = loaded.generate(cell.question, sampling=cell.options.sampling, seed=cell.seed)
            except GenerationFailed as error:
                print(error.message, file=sys.stderr)
                generation = Generation(text="", finish="stop", prompt_tokens=0, output_tokens=0, seconds=0.0)
            form = "list" if cell.question.form is None else "json"
            n_tips, rubric = cell.options.n_tips, cell.pack.rubric
            found = parse_candidates(generation.text, n_tips=n_tips, rubric=rubric, form=form)
            print(f"{cell.name}: {sum(c.answered for c in found)} of {n_tips}", file=sys.stderr)
            yield FormAnswer(cell, found, generation)


def describe(row: list[FormAnswer]) -> str:
    """The figures of one prompt."""
    slots = [candidate for answer in row for candidate in answer.candidates]
    filled = [candidate for candidate in slots if candidate.answered]
    well_formed = row[0].cell.pack.format_flag
    fine = sum(candidate.flags[well_formed] for candidate in filled) if well_formed else 0
    # Every cell was asked for the same number: what is missing has a reason.
    assert all(candidate.failure for candidate in slots if not candidate.answered), NO_TIP
    cut = sum(answer.generation.finish == "length" for answer in row)
    tokens = fmean(answer.generation.output_tokens for answer in row)
    seconds = fmean(answer.generation.seconds for answer in row)
    share = f"{100 * len(filled) / len(slots):.1f} %"
    return (
        f"{len(slots)} | {share} | {100 * fine / max(1, len(filled)):.0f} % | {cut} of {len(row)} | "
        f"{tokens:.0f} | {seconds:.1f}"
    )


if __name__ == "__main__":
    main()
