"""One text, one verdict: equal texts of a scenario are one item, and what is said of it is said of each."""

import json
from collections import Counter
from dataclasses import replace
from itertools import count
from pathlib import Path
from random import Random
from statistics import pstdev

import pytest

from tests.judging.cells import LAZY, given, make_cell, rubric_of, sitting
from tests.judging.live import answer, make_live, opened
from tests.ranking.campaign import (
    SKILL,
    collect_campaign,
    judge_automatically,
    judge_lazily,
    open_judging,
    score_text,
)
from tests.support.experiments import compare_experiment
from tests.support.sheets import REFERENCES
from tipbench.bench.bench import Bench, open_bench
from tipbench.bench.cells import pack_verdicts, unpack_verdicts
from tipbench.bench.evidence import CountedVerdict, Evidence
from tipbench.bench.scores import (
    JudgedVerdict,
    find_pairs,
    list_verdicts,
    pair_tiers,
    read_noise,
    sort_by_judge,
)
from tipbench.bench.sittings import Answer, BlindKey, Decision, SittingFacts, sitting_write
from tipbench.clock import make_stamps
from tipbench.judging.closing import close_all, store_answers
from tipbench.judging.draw import draw_sections, read_checked, split_sections
from tipbench.judging.handout import Sitting, build_sitting, gather_material, make_sittings
from tipbench.judging.known import find_said
from tipbench.judging.request import SittingRequest
from tipbench.ranking.records import Report
from tipbench.records import Verdict, content_hash
from tipbench.tracking import Tracking

Scores = dict[str, int]


def score_alike(text: str, _: object = None) -> tuple[Scores, str]:
    """What one judge says of a text, wherever it stands."""
    return score_text(text, Random(text))


def read(tracking: Tracking, experiment: str) -> Bench:
    return open_bench(tracking, experiment, stamps=make_stamps(), fresh=True)


def texts_of(bench: Bench) -> Counter[tuple[str, str]]:
    """Scenario and text → how many candidates have it."""
    return Counter(
        (cell.facts.scenario, bench.candidates_of(cell)[slot].text)
        for cell in bench.evidence.cells
        for slot in cell.answered_slots
    )


@pytest.fixture
def alike(tracking: Tracking, experiment_name: str) -> str:
    """Three arms on two scenarios, thirty candidates at most; many of them say the same."""
    collect_campaign(tracking, experiment_name, scenarios=2, prompts=1)
    return experiment_name


def test_a_text_is_handed_out_once_and_every_candidate_with_it_is_judged(
    tracking: Tracking, alike: str, tmp_path: Path
) -> None:
    texts = texts_of(read(tracking, alike))
    assert max(texts.values()) > 2
    judging = open_judging(tracking, tmp_path)
    judged = judge_lazily(judging, alike, folder=tmp_path, score_of=score_alike)
    assert judged == sum(texts.values())
    (file,) = (path for path in tmp_path.glob("anna-*.json") if not path.stem.endswith(".schema"))
    (section,) = json.loads(file.read_text())["sections"]
    shown = Counter((item["scenario"], item["text"]) for item in section["items"])
    assert set(shown.values()) == {1}
    assert len(section["items"]) <= len(texts) + 6 < sum(texts.values())
    bench = read(tracking, alike)
    said: dict[tuple[str, str], set[str]] = {}
    for each in bench.evidence.lazy:
        if not each.verdict.failed:
            text = bench.candidates_of(each.cell)[each.verdict.slot].text
            said.setdefault((each.cell.facts.scenario, text), set()).add(
                each.verdict.model_dump_json(include={"scores"})
            )
            assert bool(each.verdict.shared) == (texts[each.cell.facts.scenario, text] > 1)
    assert all(len(verdicts) == 1 for verdicts in said.values())
    assert len(said) == len(texts)


def judge_each_copy(tracking: Tracking, experiment: str) -> None:
    """One sitting in which every copy has an id of its own, all of them answered alike."""
    bench = read(tracking, experiment)
    blocks = [b for section in draw_sections(bench, SittingRequest("anna"), rng=Random(1)) for b in section]
    made = build_sitting(blocks, material=gather_material(bench), order_seed=1)
    items = {item.id: item for item in made.items}
    key = BlindKey(
        items=tuple(
            each.model_copy(update={"id": f"{each.id}{n}"})
            for each, n in zip(made.key.items, count(), strict=False)
        ),
        failed=made.key.failed,
    )
    assert len(key.ids) > len(items)
    token = _open(bench, made, key)
    answers = {
        copy.id: Answer(
            scores=REFERENCES.get(items[first.id].text) or score_alike(items[first.id].text)[0],
            flags=items[first.id].flags,
        )
        for copy, first in zip(key.items, made.key.items, strict=True)
    }
    bench = bench.again(fresh=True)
    store_answers(bench.find_sitting(token), answers, previous={}, key=key, bench=bench)
    bench = bench.again(fresh=True)
    close_all([bench.find_sitting(token)], bench)


def _open(bench: Bench, made: Sitting, key: BlindKey) -> str:
    cell, write = bench.evidence.cells[0].facts, bench.blank()
    facts = SittingFacts(
        token=made.token, tier="lazy", judge_kind="human", rubric=cell.rubric, rubric_hash=cell.rubric_hash,
        pack_hash=cell.pack_hash, drawn="block", order_seed=1, expires_ms=write.start_time + 3_600_000,
        items=len(key.items), anchors=len(made.anchors), blocks=made.blocks,
    )  # fmt: skip
    ready = sitting_write(facts, key, judged_by="anna", write=write)
    bench.tracking.deliver(ready.model_copy(update={"params": {"judged_by": "anna"}}))
    return made.token


def numbers_of(report: Report) -> dict[str, float]:
    """Every number on the lines of the board, by where it stands."""
    found: dict[str, float] = {}
    for line in report.standings:
        values = line.model_dump()
        for name, value in (values | (values["against_best"] or {}) | values["parts"]).items():
            if isinstance(value, int | float):
                found[f"{line.name} · {name}"] = float(value)
    return found


def test_the_board_is_the_one_where_each_copy_got_the_same_verdict_by_hand(
    tracking: Tracking, experiment_name: str, tmp_path: Path
) -> None:
    shared, by_hand = f"{experiment_name}-shared", f"{experiment_name}-by-hand"
    for name in (shared, by_hand):
        collect_campaign(tracking, name, scenarios=2, prompts=1, pack_name=experiment_name)
    judge_lazily(open_judging(tracking, tmp_path), shared, folder=tmp_path, score_of=score_alike)
    judge_each_copy(tracking, by_hand)
    marked = [bool(g.verdict.shared) for g in read(tracking, shared).evidence.lazy]
    assert any(marked)
    assert not any(g.verdict.shared for g in read(tracking, by_hand).evidence.lazy)
    one, other = (numbers_of(compare_experiment(tracking, name, by="arm")) for name in (shared, by_hand))
    assert {name.partition(" · ")[0] for name in one} == {f"{model}+v1" for model in SKILL}
    latency = {name for name in one if "latency" in name or "tokens" in name}
    assert {n: v for n, v in one.items() if n not in latency} == pytest.approx(
        {n: v for n, v in other.items() if n not in latency}, abs=1e-9
    )
    assert pstdev(v for n, v in one.items() if n.endswith("v1 · composite")) > 0


def test_agreement_counts_what_was_said_once_once(tracking: Tracking, alike: str, tmp_path: Path) -> None:
    judging = open_judging(tracking, tmp_path)
    texts = texts_of(read(tracking, alike))
    judge_lazily(judging, alike, folder=tmp_path, score_of=score_alike)
    judge_lazily(judging, alike, folder=tmp_path, judged_by="bert", second=1.0)
    (pair,) = judging.judges([alike]).pairs
    assert (pair.judges, pair.candidates) == (("anna", "bert"), len(texts))


def judge_in_two_sittings(tracking: Tracking, experiment: str, *, again: bool) -> Counter[str]:
    """Half of the blocks, then the rest, with every text answered alike; whether the second sitting shows
    `again` what the first one had. Gives how often each text was shown."""
    shown = Counter[str]()
    for blocks in (5, None):
        bench = read(tracking, experiment)
        request = SittingRequest("anna", blocks=blocks)
        said = {} if again else find_said(bench, "anna")
        drawn = [block for section in draw_sections(bench, request, rng=Random(1)) for block in section]
        made = build_sitting(drawn, material=gather_material(bench), said=said, order_seed=1)
        token = _open(bench, made, made.key)
        answers = {
            item.id: Answer(scores=REFERENCES.get(item.text) or score_alike(item.text)[0], flags=item.flags)
            for item in made.items
        }
        shown.update(item.text for item in made.items if item.text not in REFERENCES)
        bench = bench.again(fresh=True)
        store_answers(bench.find_sitting(token), answers, previous={}, key=made.key, bench=bench)
        bench = bench.again(fresh=True)
        close_all([bench.find_sitting(token)], bench)
    return shown


def test_over_all_sittings_of_a_judge_a_text_is_shown_once_and_the_board_is_the_same(
    tracking: Tracking, experiment_name: str, tmp_path: Path
) -> None:
    once, again = f"{experiment_name}-once", f"{experiment_name}-again"
    for name in (once, again):
        collect_campaign(tracking, name, scenarios=2, prompts=1, pack_name=experiment_name)
    few = judge_in_two_sittings(tracking, once, again=False)
    many = judge_in_two_sittings(tracking, again, again=True)
    assert set(few) == set(many)
    assert few.total() < many.total()
    evidence = read(tracking, once).evidence
    assert evidence.count_waiting() == read(tracking, again).evidence.count_waiting() == (0, 0)
    first, second = (sitting.facts.token for sitting in evidence.sittings)
    elsewhere = [g for g in evidence.lazy if g.sitting.facts.token == second and g.item[0] == first]
    assert elsewhere
    assert all(given.verdict.shared.startswith(f"{first}/") for given in elsewhere)
    one, other = (numbers_of(compare_experiment(tracking, name, by="arm")) for name in (once, again))
    timed = {name for name in one if "latency" in name or "tokens" in name}
    assert {n: v for n, v in one.items() if n not in timed} == pytest.approx(
        {n: v for n, v in other.items() if n not in timed}, abs=1e-9
    )
    # A second judge agrees or not with what was said once: each text is one pair.
    judging = open_judging(tracking, tmp_path)
    judge_lazily(judging, once, folder=tmp_path, judged_by="bert", second=1.0)
    (pair,) = judging.judges([once]).pairs
    assert pair.candidates == len(texts_of(read(tracking, once)))
    # What was said in a sitting that does not count any more counts nowhere.
    judging.decide(Decision(sitting=first, accept=False, reason="a cat was judging"), experiment=once)
    left = [given for given in read(tracking, once).evidence.lazy if not given.verdict.failed]
    assert left
    assert not any(first in given.item[0] or given.sitting.facts.token == first for given in left)


def test_a_sheet_of_several_sections_asks_for_a_text_in_one_of_them(
    tracking: Tracking, alike: str, tmp_path: Path
) -> None:
    texts = texts_of(read(tracking, alike))
    bench = read(tracking, alike)
    blocks = [b for section in draw_sections(bench, SittingRequest("anna"), rng=Random(1)) for b in section]
    sections = split_sections(blocks, room=len(texts) // 2)
    assert len(sections) >= 2
    made = make_sittings(sections, material=gather_material(bench), shown=(), seeds=count().__next__)
    shown = [item.text for sitting in made for item in sitting.items if item.text not in REFERENCES]
    assert len(shown) == len(texts)
    assert any(member.sitting == made[0].token for member in made[1].key.known)
    assert all(len(sitting.items) - len(sitting.anchors) <= len(texts) // 2 for sitting in made)


def test_an_automatic_judge_is_asked_once_for_each_text(
    tracking: Tracking, alike: str, tmp_path: Path
) -> None:
    bench = read(tracking, alike)
    texts = texts_of(bench)
    outcome = judge_automatically(open_judging(tracking, tmp_path), alike, folder=tmp_path)
    assert outcome.spent.calls == len(texts) + len(bench.pack.anchors)
    assert outcome.judged == outcome.candidates == sum(texts.values())
    judge_lazily(open_judging(tracking, tmp_path), alike, folder=tmp_path, score_of=score_alike)
    evidence = read(tracking, alike).evidence
    assert len(evidence.auto) == sum(texts.values())
    assert len(pair_tiers(evidence, bench.pack.rubric)) == len(texts)
    assert len(read_checked(evidence)) == len(texts)


def test_a_copy_whose_cell_is_gone_takes_no_verdict_and_holds_up_no_other(
    tracking: Tracking, alike: str, tmp_path: Path
) -> None:
    judging = make_live(tracking, tmp_path)
    live = opened(judging, alike)
    bench = read(tracking, alike)
    key = bench.key_of(bench.find_sitting(live.token))
    often, copies = Counter(item.id for item in key.items if item.cell).most_common(1)[0]
    assert copies > 1
    gone = next(item.cell for item in key.items if item.id == often)
    tracking.delete_run(gone)
    closed = judging.submit(live.token, {each.id: answer(each) for each in live.waiting}, experiment=alike)
    assert closed.state == "accepted"
    evidence = read(tracking, alike).evidence
    assert gone not in {each.cell.run.run_id for each in evidence.lazy}
    assert evidence.count_waiting() == (0, 0)


# What is stored, and what counts: no server.


def verdict(slot: int, shared: str = "") -> Verdict:
    scores = {"relevance": 3, "actionability": 2, "tone": 4}
    return Verdict(slot=slot, block=0, scores=scores, flags={"format_ok": True}, shared=shared)


def test_the_mark_lies_beside_the_verdicts_and_older_readers_read_them() -> None:
    marked = [verdict(0, "0123abcd"), verdict(1), verdict(2, "0123abcd")]
    tags = pack_verdicts("bcdf", 1, marked)
    assert unpack_verdicts(tags) == ({("bcdf", 1): tuple(marked)}, ())
    plain = json.loads(pack_verdicts("bcdf", 1, [verdict(n) for n in range(3)])["verdict:bcdf:1"])
    packed = json.loads(tags["verdict:bcdf:1"])
    # An older reader knows these three alone, and refuses fields of a verdict that it does not know.
    assert {name: packed[name] for name in ("count", "hash", "verdicts")} == {
        name: plain[name] for name in ("count", "hash", "verdicts")
    }
    assert "shared" not in plain
    assert all("shared" not in row for row in packed["verdicts"])


@pytest.mark.parametrize("shared", ["[1]", '{"a":"b"}', '{"0":1}', "7"])
def test_a_mark_that_is_none_is_damage(shared: str) -> None:
    tags = pack_verdicts("bcdf", 1, [verdict(0, "0123abcd")])
    broken = tags["verdict:bcdf:1"].replace('{"0":"0123abcd"}', shared)
    assert unpack_verdicts({"verdict:bcdf:1": broken}) == ({}, ("verdict:bcdf:1",))


def test_many_marked_verdicts_fit_into_the_tags() -> None:
    marked = [verdict(n, content_hash(n)[:8]) for n in range(300)]
    tags = pack_verdicts("bcdf", 1, marked)
    assert len(tags) > 1
    assert max(map(len, tags.values())) <= 7_500
    assert unpack_verdicts(tags)[0]["bcdf", 1] == tuple(marked)


def share(said: CountedVerdict, mark: str) -> CountedVerdict:
    return replace(said, verdict=said.verdict.model_copy(update={"shared": mark}))


def test_each_verdict_is_in_one_pair_whoever_judged_the_copies_apart() -> None:
    """Anna met the five copies once, Bert two of them together and three one by one."""
    cell = make_cell(model="a")
    second = sitting("bert", tier="lazy", drawn="second", judge="bert")
    lazy = tuple(share(given(cell, LAZY, slot, 8), "m") for slot in range(5))
    doubles = tuple(share(given(cell, second, slot, 9), "m" if slot < 2 else "") for slot in range(5))
    evidence = Evidence((cell,), (), (), lazy, doubles, None)
    said = sort_by_judge((each, JudgedVerdict(each, rubric_of(cell))) for each in list_verdicts(evidence))
    ((_, both),) = find_pairs(said)
    assert len(both) == 1
    apart = Evidence((cell,), (), (), tuple(share(each, "") for each in lazy), doubles, None)
    said = sort_by_judge((each, JudgedVerdict(each, rubric_of(cell))) for each in list_verdicts(apart))
    ((_, both),) = find_pairs(said)
    assert len(both) == 4


def test_what_was_said_once_and_once_again_is_one_repeat() -> None:
    cells = [make_cell(model="a", scenario=f"s{n}", slots="aa") for n in range(40)]
    second = sitting("again", tier="lazy", drawn="second", judge="anna")
    places = [(n, cell, slot) for n, cell in enumerate(cells) for slot in (0, 1)]
    lazy = tuple(share(given(cell, LAZY, slot, 8), f"m{n}") for n, cell, slot in places)
    doubles = tuple(share(given(cell, second, slot, 8 + 3 * (n % 2)), f"m{n}") for n, cell, slot in places)
    noise = read_noise(Evidence(tuple(cells), (), (), lazy, doubles, None), rubric_of, kind="human")
    assert noise.rule.repeats == 40
