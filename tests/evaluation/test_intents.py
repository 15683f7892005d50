"""The intent bed, gold spans as a data set, and the gate."""

import json
import re
from dataclasses import replace
from itertools import pairwise

import pytest
from evaluation_material import bench, write_beir, write_lines
from hypothesis import given, settings
from hypothesis import strategies as st
from llama_index.core.schema import NodeRelationship, NodeWithScore, RelatedNodeInfo, TextNode

from agentic_retriever.errors import EvaluationError
from agentic_retriever.evaluation import datasets, intents
from agentic_retriever.evaluation.measures import Row, Span, fold_to_spans, measure_rankings
from agentic_retriever.evaluation.results import IntentQuality
from agentic_retriever.ingestion import SourceDocument
from agentic_retriever.text.language_files import section

GUIDE = """# Keeping bees

## 1. Choosing a place for the hive

A hive stands best where the morning sun warms it and no wind blows into the door. Set it with `hive_stand` on wood.

## 2. Feeding a colony in winter

### 2.1. Sugar and water

Two parts of sugar are boiled in one part of water; the Langstroth box holds four litres. Langstroth lids, Langstroth.

### 2.2. Fondant from the shop

Fondant keeps for months and is laid on top of the frames, when the frost is too hard for anything else. --no-syrup

### 2.3. Old honeycomb

What was kept from summer may be given back, if no disease was seen; Varroa mites, Varroa counts and Varroa strips.

## 3. Taking honey from the frames

The knife is warmed and drawn along the comb from below, then the frames turn until nothing more runs out of them.
"""
SMOKE = """# Smoke and what it does

## 1. Lighting a smoker with straw

Straw is rolled, lit at one end and pushed in with the burning side down, so that it glows and does not flame up.

## 2. Why do bees become calm?

They take it for a fire in the woods, fill themselves with honey, and are too heavy then to bend and sting anybody.
"""
PAPERS = [
    {"_id": f"p{at}", "title": f"{topic} of the {animal} in the hills", "text": f"A {animal}. {'So it is. ' * 9}",
     "metadata": {"year": 1990 + at, "kind": kind, "authors": [f"{name}, A."]}}
    for at, (topic, animal, kind, name) in enumerate([
        ("Song", "thrush", "note", "Berg"), ("Flight", "falcon", "study", "Ito"), ("Nests", "dipper", "note", "Ito"),
        ("Moult", "plover", "study", "Moss"), ("Calls", "wagtail", "news", "Berg"), ("Eggs", "bunting", "note", "Diaz"),
    ])
]  # fmt: skip


@pytest.fixture
def bees(tmp_path):
    folder = tmp_path / "bees"
    folder.mkdir()
    (folder / "guide.md").write_text(GUIDE, encoding="utf-8")
    (folder / "smoke.md").write_text(SMOKE, encoding="utf-8")
    return folder


def made_of(folder, seed=0):
    found = intents.intent_dataset(datasets.find_source(folder), seed=seed)
    by_intent = {intent: [q for q in found.queries if q.intent == intent] for intent in intents.WHY_NOT}
    return found, by_intent, {document.doc_id: document for document in found.documents}


def flat(text):
    return " ".join(text.split()).casefold()


@pytest.mark.parametrize("seed", range(4))
def test_gold_is_what_it_says(bees, seed):
    found, by_intent, after = made_of(bees, seed)
    before = {"guide.md": GUIDE, "smoke.md": SMOKE}
    whole = flat(" ".join(document.text for document in after.values()))
    for query in found.queries:
        assert query.pseudo
        assert set(query.relevance) == ({span.name for span in query.spans} or set(query.relevance) & set(before))
        for span in query.spans:
            assert 0 <= span.start < span.end <= len(before[span.doc_id])
            assert before[span.doc_id][span.start : span.end].strip()
    for doc_id, document in after.items():  # offsets stay
        assert len(document.text) == len(before[doc_id])
        assert document.text.count("\n") == before[doc_id].count("\n")
    asked = {q.spans[0]: title for q in by_intent["lookup"] for title in re.findall(r"#+ [\d.]* ?(.+)", GUIDE + SMOKE)
             if title.casefold() in q.text.casefold()}  # fmt: skip
    assert len(asked) == len(by_intent["lookup"]) >= 4
    for span, title in asked.items():
        assert flat(title) not in whole
        text = before[span.doc_id]
        assert text[: span.start].rstrip().endswith(title)  # gold is what stands below the heading
    assert [q.text for q in made_of(bees, seed)[0].queries] == [q.text for q in found.queries]


@pytest.mark.parametrize("seed", range(4))
def test_parts_are_the_ones_that_are_named(bees, seed):
    _, by_intent, _ = made_of(bees, seed)
    before = {"guide.md": GUIDE, "smoke.md": SMOKE}
    for query in by_intent["two-part"]:
        first, second = query.spans
        assert first.doc_id != second.doc_id or first.end <= second.start or second.end <= first.start
    for query in by_intent["reference"]:
        number = re.search(r"[\d.]*\d", query.text)[0]
        [span] = query.spans
        assert re.search(rf"^#+ {re.escape(number)}\. [^\n]*\n\s*\Z", before[span.doc_id][: span.start], re.MULTILINE)
    for query in by_intent["exact"]:
        string = next(one for one in ("hive_stand", "--no-syrup") if one in query.text)
        assert all(string in before[span.doc_id][span.start : span.end] for span in query.spans)
    for query in by_intent["overview"]:
        assert len(query.spans) >= 3
        assert all(one.end <= other.start for one, other in pairwise(query.spans))


def test_every_intent_that_a_text_has_is_asked_and_the_others_are_named(bees):
    found, by_intent, _ = made_of(bees)
    assert [intent for intent, asked in by_intent.items() if not asked] == ["filter"]
    assert any("no filter question: no metadata field" in note for note in found.notes)
    [comparison] = [q for q in by_intent["comparison"] if "Langstroth" in q.text and "Varroa" in q.text]
    assert [GUIDE[span.start : span.end].split(maxsplit=1)[0] for span in comparison.spans] == ["Two", "What"]


def test_a_document_without_a_title_is_asked_for_by_a_sentence_that_is_taken_out(tmp_path):
    story = (
        "{0} grows on wide fields. The harvest of {0} begins in late summer. Mills grind the {0} harvest into flour."
    )
    records = [{"_id": name, "text": story.format(name)} for name in ("wheat", "barley")]
    write_lines(tmp_path / "fields" / "corpus.jsonl", records)
    _, by_intent, after = made_of(tmp_path / "fields")
    assert {doc_id for query in by_intent["lookup"] for doc_id in query.relevance} == {"wheat", "barley"}
    for query in by_intent["lookup"]:
        [doc_id] = query.relevance
        assert query.text in story.format(doc_id)
        assert flat(query.text) not in flat(after[doc_id].text)


@pytest.mark.parametrize("language", sorted(section("intents")))
def test_wordings_hold_what_they_ask_for(language):
    table, bare = section("intents")[language], section("intents")["und"]
    assert set(table) == set(bare)
    needed = {kind: set(re.findall(r"{(\w+)}", ways[0])) for kind, ways in bare.items()} | {"value": {"value"}}
    for kind, ways in table.items():
        for way in ways:
            names = set(re.findall(r"{(\w+)}", way))
            assert needed[kind] <= {name.replace("then", "second") for name in names}, way
            assert way.format(**dict.fromkeys(names, "x"))


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abcd"), st.integers(1990, 1999), st.booleans()), min_size=2, max_size=14))
def test_filter_gold_is_what_brute_force_finds(rows):
    held = [{"kind": f"sort {kind}", "year": year} if known else {} for kind, year, known in rows]
    papers = [
        SourceDocument(doc_id=f"d{at}", text="x" * 80, title="", kind="jsonl", metadata=metadata)
        for at, metadata in enumerate(held)
    ]
    source = datasets.Dataset(name="n", path=".", kind=datasets.DatasetKind.BEIR, documents=tuple(papers))
    try:
        queries = intents.intent_dataset(source).queries
    except EvaluationError:
        queries = ()
    for query in queries:
        years = [int(year) for year in re.findall(r"\d{4}", query.text)]
        value = re.search(r"sort \w", query.text)
        if years:
            right = {f"d{at}" for at, one in enumerate(held) if one and years[0] <= one["year"] <= years[-1]}
        else:
            right = {f"d{at}" for at, one in enumerate(held) if one and one["kind"] == value[0]}
        assert set(query.relevance) == right
        assert 0 < 2 * len(right) <= len(papers)


def test_values_names_and_ranges_of_records(tmp_path):
    write_lines(tmp_path / "papers" / "corpus.jsonl", PAPERS)
    _, by_intent, after = made_of(tmp_path / "papers")
    assert any("note" in query.text for query in by_intent["filter"])
    [ito] = [query for query in by_intent["filter"] if "Ito" in query.text]
    assert set(ito.relevance) == {"p1", "p2"}
    for query in by_intent["document"]:
        [doc_id] = query.relevance
        assert after[doc_id].title == ""
        assert PAPERS[int(doc_id[1:])]["title"] in query.text


def test_bad_input(tmp_path):
    for name, text, told in (
        ("one", "Only one sentence, and nothing that could be asked of it by anybody at all, so it is.", "no lookup"),
        ("short", "Tiny.", "no question can be made"),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.txt").write_text(text, encoding="utf-8")
        with pytest.raises(EvaluationError, match=told):
            intents.intent_dataset(datasets.find_source(tmp_path / name))
    asked = write_lines(tmp_path / "asked.jsonl", [{"query": "Where?", "index": "fields"}])
    with pytest.raises(EvaluationError, match="holds no documents to make questions of; name a folder"):
        intents.intent_dataset(datasets.load_dataset(asked))
    with pytest.raises(EvaluationError, match="given vectors are not theirs"):
        bench(tmp_path, asked, intents=True, vectors=tmp_path)


def test_spans_are_ranked_by_the_first_node_that_finds_them():
    a, b = Span("d", 0, 100), Span("d", 200, 230)
    assert all([a.is_found_by("d", 40, 400), a.is_found_by("d", 90, 110), b.is_found_by("d", 0, 900)])
    assert not any([a.is_found_by("e", 0, 100), a.is_found_by("d", 50, 400), a.is_found_by("d", None, None)])

    def node(start, end):
        source = {NodeRelationship.SOURCE: RelatedNodeInfo(node_id="d")}
        return NodeWithScore(node=TextNode(text="t", start_char_idx=start, end_char_idx=end, relationships=source))

    assert fold_to_spans([node(0, 90), node(10, 100), node(0, 300)], [a, b]) == [a.name, "d (2)", b.name]


def test_questions_with_gold_spans_are_a_data_set(tmp_path, bees):
    folder = tmp_path / "asked"
    (folder / "docs").mkdir(parents=True)
    (folder / "docs" / "guide.md").write_text(GUIDE, encoding="utf-8")
    start = GUIDE.index("A hive stands")
    line = {"id": "q1", "question": "Where does a hive stand?", "doc": "guide.md", "start": start, "end": start + 90}
    bad = [{**line, "id": "q2", "doc": "no.md"}, {**line, "id": "q3", "end": start}, {**line, "id": "q4", "end": 10**6}]
    write_lines(folder / "questions.jsonl", [line, {**line, "start": 0, "end": 20}, *bad])
    found = datasets.find_source(folder)
    assert found.problems.counts == {"missing_field": 1, "unknown_document": 2}
    [query] = found.queries
    assert (query.intent, query.pseudo, query.spans) == (
        "lookup", False, (Span("guide.md", start, start + 90), Span("guide.md", 0, 20)),
    )  # fmt: skip
    told = bench(tmp_path, folder, strategies=["vector", "auto"], views=False, answers=True)
    assert query.spans[0].name in told.results["asked"].rows["auto"].records["q1"]["docs"]
    made = intents.intent_dataset(found).queries
    assert [(q.text, q.pseudo) for q in made if q.intent == "lookup"] == [(query.text, False)]


def test_the_best_of_each_intent_and_the_best_for_all():
    gold = {"a": {"x": 1}, "b": {"x": 1}, "c": {"x": 1}}
    ranked = {"vector": {"a": ["x"], "b": ["y"], "c": ["y"]}, "hybrid": {"a": ["y"], "b": ["x"], "c": ["x"]},
              "auto": {"a": ["x"], "b": ["x"], "c": ["y"]}}  # fmt: skip
    rows = [Row(name=name, quality=measure_rankings(gold, ranks), records={}) for name, ranks in ranked.items()]
    query = datasets.LabelledQuery(query_id="a", text="?", index="n")
    asked = {
        one: replace(query, query_id=one, intent=intent)
        for one, intent in (("a", "exact"), ("b", "lookup"), ("c", "lookup"))
    }
    found = IntentQuality.of(rows, asked.values())
    assert (found.best_fixed, found.oracle, found.oracle_mean) == (
        "vector", {"exact": "vector", "lookup": "hybrid"}, 1.0,
    )  # fmt: skip
    assert (found.mean("hybrid"), found.mean("auto")) == (0.5, 0.75)
    assert found.table("t").lines[1] == "auto is +0.250 from the best fixed (vector), 75% of the best by intent"
    assert IntentQuality.merged([found, found]).means == found.means
    assert IntentQuality.of(rows, [query]) is None


def test_the_command_shows_and_writes_every_intent(cli, bees, tmp_path):
    pytest.importorskip("matplotlib")
    options = "--intents --strategies vector,hybrid,auto --no-views --json o.json --html o.html"
    done = cli("bench", bees, *options.split())
    assert done.exit_code == 0, done.output
    for word in ("bees by intent, nDCG@10", "best by intent", "from the best fixed", "no filter question"):
        assert word in done.output
    told = json.loads((tmp_path / "o.json").read_text())["intents"]
    assert set(told["means"]) == {"vector", "hybrid", "auto", "oracle"}
    assert set(told["counts"]) == set(intents.WHY_NOT) - {"filter"}
    assert "bees by intent" in (tmp_path / "o.html").read_text()


def test_the_gate_says_what_is_met_and_what_is_not_measured(cli, tmp_path):
    folder = write_beir(
        tmp_path / "boats", {"b1": "The ferry leaves at nine."}, {"q1": ("when does the ferry leave", "b1")}
    )
    done = cli("bench", folder, "--gate", "--no-views", "--json", "o.json")
    told = {one["name"]: one for one in json.loads((tmp_path / "o.json").read_text())["gate"]}
    assert len(told) == 7
    assert done.exit_code == int(any(one["met"] is False for one in told.values()))
    assert [told[name]["figure"] for name in ("stage-two agreement", "faithfulness", "tokens / fixed baseline")] == [
        None
    ] * 3
    assert told["citation recall"]["met"] == (told["citation recall"]["figure"] > 0.9)
    assert "not measured" in done.stdout
    missed = [replace(figure, target=2.0) for figure in bench(tmp_path, folder, gate=True, views=False).gate]
    assert [one.met for one in missed if one.name == "citation recall"] == [False]
    assert cli("bench").exit_code != 0


def test_the_gate_ends_with_one_when_a_figure_is_not_met(cli, tmp_path):
    questions = {f"q{at}": (f"ferry number {at}", f"b{(at + 1) % 3}") for at in range(3)}
    folder = write_beir(
        tmp_path / "boats", {f"b{at}": f"The ferry number {at} leaves at nine." for at in range(3)}, questions
    )
    done = cli("bench", folder, "--gate", "--no-views")
    assert done.exit_code == 1, done.output
    assert re.search(r"citation recall.*NO", done.stdout)
