"""`tipbench improve`: better versions of a prompt, or the better one of some."""

import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tipbench.cli.session import (
    CollectRun,
    FilePath,
    Function,
    Session,
    check_room,
    complete_names,
    experiment_option,
    find_judge_name,
    find_user,
    given_options,
    judge_with_agent,
    judge_with_bar,
    mlflow_options,
    pack_option,
    run_option,
    start_session,
    write_whole,
)
from tipbench.errors import CannotHoldFormat, UsageError
from tipbench.run_keys import RUN_KEYS

if TYPE_CHECKING:
    from tipbench.bench.champions import ChampionArm
    from tipbench.engines import Engines
    from tipbench.grid import Cell
    from tipbench.improve.brief import Brief, ModelProposer
    from tipbench.improve.run import Deciding, Stop
    from tipbench.improve.state import Order
    from tipbench.judging.agent import AgentOutcome
    from tipbench.records import Pack, Prompt

OF_ROUNDS = {
    *("rounds", "export", "apply", "proposer", "versions"),
    *("prompt", "model", "train_on", "promote"),
}
"""What does not go with --prompts."""
OF_ONE_ROUND = {"export", "apply"}
"""What the command that goes on does not repeat."""


def _usual(name: str) -> str:
    """What is taken where nothing is said: with a champion all is asked as it was."""
    default = RUN_KEYS[name].default
    return f"{default}" if name == "n_scenarios" else f"the champion's, else {default}"


def bench_options(function: Function) -> Function:
    """What is asked, and who judges."""
    for option in (
        *(
            run_option(name, help=f"{RUN_KEYS[name].hint} [default: {_usual(name)}]")
            for name in ("n_tips", "n_scenarios", "temperature", "seed")
        ),
        pack_option,
        click.option("--judge-model", help="The automatic judge [default: judge_model in tipbench.toml]."),
        click.option("--judged-by", help="Who judges the sheets [default: your user name]."),
        click.option(
            "--sheet",
            type=FilePath,
            default=Path("sheet.json"),
            show_default=True,
            help="The file for the judge: written when verdicts are needed, taken in when it is "
            "filled and the "
            "command runs again. Naming it means judging by file, even where judge_command is set.",
        ),
        experiment_option,
        mlflow_options,
    ):
        function = option(function)
    return function


@click.command(name="improve")
@click.option("--rounds", type=click.IntRange(1, 20), default=1, show_default=True, help="How many rounds.")
@click.option("--export", type=FilePath, metavar="BRIEF", help="Write the brief for a coding agent here.")
@click.option("--apply", type=FilePath, metavar="FILE", help="Take in the versions that answer the brief.")
@click.option("--proposer", metavar="MODEL", help="Let this model write the versions.")
@click.option(
    "--versions",
    type=click.IntRange(1, 8),
    default=2,
    show_default=True,
    help="How many --proposer writes in each round.",
)
@click.option(
    "--train-on",
    type=click.Choice(["lazy", "auto"]),
    default="lazy",
    show_default=True,
    help="Whose verdicts choose among versions: lazy, those of people and agents; auto, those of the "
    "automatic "
    "judge. The gate always asks people and agents.",
)
@click.option("--promote", is_flag=True, help="If the gate lets the winner pass, make it champion.")
@click.option(
    "--prompt",
    help="The prompt to improve while there is no champion; with --model.",
    shell_complete=complete_names("prompts"),
)
@click.option(
    "--model",
    help="The model to ask while there is no champion; with --prompt.",
    shell_complete=complete_names("models"),
)
@click.option(
    "--prompts",
    shell_complete=complete_names("prompts"),
    metavar="PROMPT,PROMPT,…",
    help="Write nothing new: compare these prompts and promote the best one.",
)
@click.option(
    "--models",
    help=f"With --prompts: {RUN_KEYS['models'].hint} [default: {RUN_KEYS['models'].default}]",
    shell_complete=complete_names("models"),
)
@click.option(
    "--scenarios",
    help="The scenario set to train on, without its held-out ones [default: wide, else all]; with "
    "--prompts the set "
    "to ask about [default: core].",
)
@bench_options
@click.pass_context
def command(ctx: click.Context, **given: Any) -> None:
    """Better versions of the champion's prompt, from its worst verdicts; the best is confirmed for the gate.

    Runs until it needs verdicts or versions: exit code 4, with the command that goes on. Then 0: the gate
    lets the winner pass (promote it; with --promote or --prompts it is promoted), 3: nothing better was
    found. With the setting judge_command and --proposer nobody is needed.
    """
    from tipbench.engines import open_engines
    from tipbench.settings import read_settings
    from tipbench.show.console import make_console

    with_prompts = given["prompts"] is not None
    _check_options(given_options(ctx), with_prompts=with_prompts)
    flags = {name: value for name, value in given.items() if name not in {*OF_ROUNDS, "sheet"}}
    settings = read_settings(flags)
    check_room(settings)
    say = make_console()
    with (
        open_engines(settings, report=lambda line: say.print(line, markup=False)) as engines,
        start_session(settings, say=say) as session,
    ):
        if with_prompts:
            stop = _compare_prompts(session, engines, given, typed=given_options(ctx))
        else:
            stop = _improve(session, engines, given, typed=given_options(ctx))
        _show_stop(ctx, session, stop)
    ctx.exit(stop.exit_code)


def _check_options(given: Mapping[str, str], *, with_prompts: bool) -> None:
    if with_prompts:
        for name in sorted(OF_ROUNDS & set(given)):
            raise UsageError(f"{given[name]} does not go with --prompts")
    elif "models" in given:
        raise UsageError("--models goes with --prompts", hint="To improve one prompt: --model NAME.")
    if len({"export", "apply", "proposer"} & set(given)) > 1:
        raise UsageError("improve takes one of --export, --apply and --proposer at a time")


def _compare_prompts(
    session: Session, engines: "Engines", given: Mapping[str, Any], *, typed: Mapping[str, str]
) -> "Stop":
    """Collect, judge, ask the gate, promote: as far as it goes without a lazy judge."""
    from tipbench.grid import add_champion, prepare_grid
    from tipbench.improve.state import check_challenge
    from tipbench.promotion.gate import GateQuestion
    from tipbench.promotion.succession import settle

    settings, say = session.settings, session.say
    cells = prepare_grid(settings, find_model=engines.admit)
    found = settle(session.tracking, cells[0].pack.name, stamps=session.stamps)
    if found is not None:
        check_challenge(cells, found.arm, settings.gate.scenarios)
        cells = add_champion(
            cells,
            found.arm,
            find_model=engines.admit,
            report=lambda line: say.print(line, markup=False),
        )
    deciding = _open_deciding(session, engines, sheet=given["sheet"], by_file="sheet" in typed)
    said = deciding.bench(cells, settings.experiment)
    return deciding.decide(GateQuestion(settings.experiment), promote=True).after(*said)


def _improve(
    session: Session, engines: "Engines", given: Mapping[str, Any], *, typed: Mapping[str, str]
) -> "Stop":
    """Rounds of new versions, as far as it goes without a judge and a writer."""
    from tipbench.improve.brief import read_proposals
    from tipbench.improve.run import Improving

    if given["train_on"] == "auto" and session.settings.judge_model is None:
        raise UsageError(
            "--train-on auto needs an automatic judge",
            hint="Name one: --judge-model NAME, or judge_model in tipbench.toml.",
        )
    order = _make_order(session, engines, given, typed=typed)
    improving = Improving(
        order,
        given["rounds"],
        _open_deciding(session, engines, sheet=given["sheet"], by_file="sheet" in typed),
        _exporter(given["export"]),
        _find_proposer(engines, given["proposer"], given["versions"]),
        promote=given["promote"],
    )
    if given["apply"] is not None:
        names = improving.take_versions(read_proposals(given["apply"], pack=order.pack))
        session.say.print(f"versions: {', '.join(names)}", markup=False)
    return improving.advance()


def _open_deciding(session: Session, engines: "Engines", *, sheet: Path, by_file: bool) -> "Deciding":
    """Everything that leads to a decision, as this command sees it.

    Raises:
        NoAgent: the agent of the settings cannot be started.
    """
    from tipbench.improve.run import BenchSteps, Deciding, LazyJudging
    from tipbench.judging.agent import find_agent

    settings = session.settings
    if settings.judge_model is None and settings.gate.require == "both":
        session.say.print(
            '· no judge_model is set, and gate.require = "both" asks for an automatic judge: set one, or '
            'gate.require = "agree"',
            markup=False,
            style="dim",
        )
    work = EngineWork(session, engines)
    with_agent = settings.judge_command is not None and not by_file
    if with_agent:
        find_agent(settings, os.environ)
    agent = work.judge_lazily if with_agent else None
    lazy = LazyJudging(session.workbench.judging, find_judge_name(settings), sheet, agent)
    hands = BenchSteps(collect=work.collect, judge_auto=work.judge)
    return Deciding(session.workbench.promoting(find_user()), lazy, hands)


@dataclass(frozen=True)
class EngineWork:
    """Generates and judges on the engines of this machine."""

    session: Session
    engines: "Engines"

    def collect(self, cells: "Sequence[Cell]", experiment: str) -> None:
        """Generates every missing cell."""
        session = self._in(experiment)
        session.say.print(f"Collecting into {experiment!r}", markup=False)
        CollectRun(session, last=False).run(list(cells), self.engines.engine_of)

    def judge(self, experiment: str) -> None:
        """Lets the model judge that the settings name, if they do; one that showed it cannot is not asked."""
        from tipbench.bench.evidence import read_evidence
        from tipbench.judging.auto.run import AutoOrder
        from tipbench.show.sittings import print_judged
        from tipbench.workbench import find_judge

        session = self._in(experiment)
        name, say = session.settings.judge_model, session.say
        if name is None:
            return
        judge = find_judge(name, session.settings, self.engines)
        stored = session.tracking.find_experiment(experiment)
        sittings = read_evidence(session.tracking.read_runs(stored)).sittings
        if any(s.facts.judge_digest == judge.digest and s.state == "refused" for s in sittings):
            say.print(f"· {judge.name} judged before and is uninformative", markup=False, style="dim")
            return
        try:
            order = AutoOrder(judge, budget_usd=session.settings.judge_budget)
            outcome = judge_with_bar(session, order, quiet=not say.is_terminal)
        except CannotHoldFormat as error:
            say.print(f"· {error.message}", markup=False)
            return
        if outcome is not None:
            print_judged(outcome, say, judge=judge, experiment=experiment, anyway=False)

    def judge_lazily(self, experiment: str) -> "AgentOutcome | None":
        """Lets the agent of the settings judge.

        Raises:
            TipbenchError: it failed.
        """
        outcome = judge_with_agent(self.session, experiment)
        if outcome is not None:
            outcome.check(self.session.settings.judge_command_minutes)
        return outcome

    def _in(self, experiment: str) -> Session:
        return replace(self.session, workbench=self.session.workbench.within(experiment))


def _show_stop(ctx: click.Context, session: Session, stop: "Stop") -> None:
    """Where the command ended, and the command that goes on."""
    from tipbench.show.terminal import print_report, show_outcome

    for line in stop.first:
        session.say.print(line, markup=False)
    if stop.outcome is not None:
        show_outcome(stop.outcome, session.say, as_json=False)
    if stop.board is not None:
        print_report(stop.board, session.say)
    for line in stop.said:
        session.say.print(line, markup=False)
    if stop.go_on is not None:
        session.say.print(f"  {_repeat_command(ctx, stop.go_on)}", markup=False, soft_wrap=True)


def _repeat_command(ctx: click.Context, more: Sequence[str]) -> str:
    """The command as it was given, without the files of a round, with these options in the place of "
    "theirs."""
    words = ["tipbench", str(ctx.info_name)]
    for name, spelling in given_options(ctx).items():
        if name not in OF_ONE_ROUND and spelling not in more:
            value = ctx.params[name]
            words += [spelling] if value is True else [spelling, str(value)]
    return shlex.join([*words, *more])


def _make_order(
    session: Session, engines: "Engines", given: Mapping[str, Any], *, typed: Mapping[str, str]
) -> "Order":
    from tipbench.grid import find_champions_model, open_pack
    from tipbench.improve.state import Order, make_options, split_scenarios
    from tipbench.promotion.succession import settle

    settings = session.settings
    pack = open_pack(settings.pack)
    split = split_scenarios(pack, given["scenarios"], cap=settings.n_scenarios, least=settings.gate.scenarios)
    if split.remark:
        session.say.print(f"· {split.remark}", markup=False, style="dim")
    found = settle(session.tracking, pack.name, stamps=session.stamps)
    champion = None if found is None else found.arm
    name, base = _find_base(pack, champion, prompt=given["prompt"], model=given["model"])
    if champion is not None:
        _check_champions_values(champion, given, typed)
        weights = find_champions_model(champion, find_model=engines.admit)
    else:
        weights = engines.admit(name)
    options = make_options(settings, pack) if champion is None else champion.options
    return Order(
        settings.experiment,
        pack,
        weights,
        base,
        options,
        split.training,
        split.confirming,
        given["train_on"],
    )


def _check_champions_values(
    champion: "ChampionArm", given: Mapping[str, Any], typed: Mapping[str, str]
) -> None:
    """Refuses values for what is asked as the champion was.

    Raises:
        UsageError: names the options, and the champion's values.
    """
    options = champion.options
    used = {"n_tips": options.n_tips, "temperature": options.sampling.temperature, "seed": options.seed}
    others = [typed[name] for name, value in used.items() if name in typed and given[name] != value]
    if others:
        raise UsageError(
            f"{', '.join(others)}: the champion's values are used ({champion.name}: {options.n_tips} tips, "
            f"temperature {options.sampling.temperature:g}, seed {options.seed})",
            hint=f"Leave {' and '.join(others)} out.",
        )


def _find_base(
    pack: "Pack", champion: "ChampionArm | None", *, prompt: str | None, model: str | None
) -> "tuple[str, Prompt]":
    """The model and the prompt to begin with.

    Raises:
        UsageError: they are not known, or a champion stands there instead.
    """
    from tipbench.improve.state import name_base

    if champion is not None:
        if prompt or model:
            raise UsageError(
                f"{champion.name} is champion of {pack.name!r}: its prompt is what is improved",
                hint="Leave --prompt and --model out.",
            )
        return champion.model, name_base(pack, champion)
    known = {each.name: each for each in pack.prompts}
    if prompt is None or model is None or prompt not in known:
        raise UsageError(
            f"the pack {pack.name!r} has no champion yet",
            hint=f"Say what to improve: --model NAME --prompt {'|'.join(known)}",
        )
    return model, known[prompt]


def _find_proposer(engines: "Engines", name: str | None, versions: int) -> "ModelProposer | None":
    from tipbench.improve.brief import ModelProposer

    if name is None:
        return None
    model = engines.admit(name)
    return ModelProposer(model, engines.engine_of(model), versions)


def _exporter(path: Path | None) -> "Callable[[Brief], Stop]":
    from tipbench.improve.run import ask_for_export, say_exported

    def export(brief: "Brief") -> "Stop":
        if path is None:
            return ask_for_export(brief)
        write_whole(path, brief.text)
        return say_exported(brief, str(path))

    return export
