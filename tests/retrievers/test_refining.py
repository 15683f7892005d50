import importlib
import math
import traceback
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from llama_index.core.schema import NodeWithScore, TextNode
from llama_index.core.vector_stores.types import MetadataFilters
from search_material import client_of, hit, ids, of_document, scores
from store_tools import where

from agentic_retriever.config import RouterConfig, Secret
from agentic_retriever.errors import ConfigError, DeadlineExceededError, LLMError, LLMOutputError, StoreError
from agentic_retriever.retrievers import details, refining, source_scores


def dump(nodes):
    return [(entry.node.to_json(), entry.score) for entry in nodes]


NODES = [hit(f"n{i}", 1 - i / 10, f"text {i}") for i in range(6)]


down = Mock(side_effect=LLMError("nothing asked for this"))


class Reversing:
    """Turns the order round, and records what it was given."""

    def __init__(self):
        self.calls = []

    def rerank(self, query, nodes, timeout_s):
        self.calls.append((ids(nodes), timeout_s))
        return refining.by_scores(nodes, [float(i) for i in range(len(nodes))])


@pytest.fixture
def run(monkeypatch):
    """Refine the nodes as a configuration asks, by a reranker of the test."""

    def refined(reranker=None, *, query="text", top_k=3, timeout_s=60.0, vectors=down, neighbours=down, **config):
        monkeypatch.setattr(refining, "make_reranker", lambda config, client: reranker)
        made = refining.Refining(RouterConfig(**config), None)
        return made.run(query, NODES, top_k=top_k, timeout_s=timeout_s, vectors=vectors, neighbours=neighbours)

    return refined


def test_the_defaults_only_cut_and_neighbours_come_last(run):
    before = dump(NODES)
    got, degraded = run()
    assert got == NODES[:3]
    assert all(one is other for one, other in zip(got, NODES, strict=False))
    assert (degraded, dump(NODES), run(top_k=100)[0]) == ((), before, NODES)
    got, _ = run(expand_neighbours=1, neighbours=lambda node: [hit("beside", None).node])
    assert ids(got) == ["n0", "n1", "n2", "beside"]


def test_a_reranker_sees_top_k_or_more_and_has_half_of_the_time(run, monkeypatch):
    reranker = Reversing()
    run(reranker, timeout_s=60.0)
    monkeypatch.setattr(refining, "RERANK_CANDIDATES", 1)
    run(reranker, timeout_s=8.0)
    assert [(len(seen), limit) for seen, limit in reranker.calls] == [(6, 20.0), (3, 4.0)]
    monkeypatch.setattr(refining, "RERANK_CANDIDATES", 4)
    reranker = Reversing()
    got, _ = run(reranker, query="about 5", top_k=2)
    assert (reranker.calls[0][0], ids(got)) == (["n0", "n1", "n2", "n3"], ["n3", "n2"])


def test_the_model_of_a_question_is_asked_in_place_of_the_rerankers_own():
    (own, unasked), (given, asked) = client_of("1"), client_of("2, 1")
    made = refining.Refining(RouterConfig(reranker="llm"), own)
    got, _ = made.run("q", NODES, top_k=2, timeout_s=9.0, vectors=down, neighbours=down, model=given)
    assert (ids(got), len(unasked.prompts), len(asked.prompts)) == (["n1", "n0"], 0, 1)


def test_steps_that_fail_are_named_and_diverse_nodes_come_in_the_order_of_their_scores(run):
    failing = SimpleNamespace(rerank=Mock(side_effect=LLMError("the model is down")))
    got, degraded = run(failing, mmr_trade_off=0.5, expand_neighbours=1)
    assert got == NODES[:3]
    assert [step.step for step in degraded] == ["postprocess.rerank", "postprocess.mmr", "postprocess.expand"]
    assert degraded[0].reason == "the model is down"
    vectors = {f"n{i}": [1.0, 0.0] if i < 5 else [0.0, 1.0] for i in range(6)}
    got, _ = run(mmr_trade_off=0.3, vectors=lambda node_ids: {i: vectors[i] for i in node_ids})
    assert "n5" in ids(got)
    assert scores(got) == sorted(scores(got), reverse=True)
    assert set(ids(got)) == set(ids(refining.mmr(NODES, vectors, top_k=3, trade_off=0.3)))


def test_how_many_to_retrieve_and_to_keep():
    plain = refining.Refining(RouterConfig(), None)
    assert plain.candidates(8) == plain.final_top_k(8, 0.9) == 8
    assert plain.candidates(8, lifts=True) == 20
    for config in ({"mmr_trade_off": 0.5}, {"reranker": "cross_encoder"}):
        chooses = refining.Refining(RouterConfig(**config), None)
        assert (chooses.candidates(8), chooses.candidates(50)) == (20, 50)


@pytest.mark.parametrize("kind", ["make_index", "make_edge_index"])
def test_vectors_are_read_from_the_store(kind, request):
    index = request.getfixturevalue(kind)([TextNode(id_="a", text="red apple"), TextNode(id_="b", text="sea")])
    found = refining.store_vectors(index, ["b", "gone"])
    assert list(found) == ["b"]
    assert list(found["b"]) == pytest.approx(index.embedding.base.get_text_embedding("sea"), abs=1e-6)


@pytest.mark.parametrize(
    ("top_k", "score", "expected"),
    [(8, 0.0, 4), (8, 0.5, 8), (8, 1.0, 12), (4, 0.0, 3), (2, 0.0, 2), (1, 0.0, 1), (8, 7, 12), (10_000, 1.0, 10_000)],
)
def test_simple_questions_get_fewer_and_complex_ones_more(top_k, score, expected):
    assert refining.Refining(RouterConfig(adaptive_top_k=True), None).final_top_k(top_k, score) == expected


@given(st.integers(1, 10_000), st.floats(0, 1), st.floats(0, 1))
def test_it_grows_with_complexity_within_the_limits(top_k, one, other):
    adaptive = refining.Refining(RouterConfig(adaptive_top_k=True), None)
    low, high = (adaptive.final_top_k(top_k, score) for score in sorted((one, other)))
    assert 1 <= low <= high <= 10_000


@pytest.mark.parametrize(("values", "fall", "kept"), [
    ((1.0, 0.9, 0.8, 0.2, 0.1), 0.5, 3), ((1.0, 0.9, 0.8, 0.2, 0.1), 0.7, 5), ((1.0, 0.2, 0.1, 0.05, 0.0), 0.5, 5),
    ((0.5, 0.5, 0.5, 0.5, 0.5), 0.1, 5), ((1.0, 0.9, 0.8, 0.2, 0.1), 0.0, 5), ((1.0, 0.9, 0.8, 0.2, None), 0.1, 5),
    ((math.inf, 0.9, 0.8, 0.2), 0.1, 4), ((), 0.5, 0), ((1.0,), 0.5, 1),
])  # fmt: skip
def test_nodes_behind_a_clear_gap_are_left_out(values, fall, kept):
    nodes = [hit(f"n{i}", value) for i, value in enumerate(values)]
    assert refining.stop_at_fall(nodes, fall) == nodes[:kept]  # the first three always stay
    assert len(nodes) == len(values)


# Lifting.
BRAKES = [hit("a", 0.9, "tyres and wheels"), hit("b", 0.88, "the approval of brakes"), hit("c", 0.1, "brakes")]


def test_words_lift_a_node_by_a_share_of_the_range_each():
    before = dump(BRAKES)
    got = refining.lift(BRAKES, ["approval"])
    assert (ids(got), scores(got)) == (["b", "a", "c"], pytest.approx([0.88 + 0.05 * 0.8, 0.9, 0.1]))
    assert source_scores(got[0])["retrieved"] == 0.88
    assert got[1] is BRAKES[0]
    assert dump(BRAKES) == before
    got = refining.lift(BRAKES, ["approval", "brakes"])
    assert dict(zip(ids(got), scores(got), strict=True)) == pytest.approx({"b": 0.96, "a": 0.9, "c": 0.14})


@pytest.mark.parametrize(("words", "order"), [
    # Endings and letter case do not matter.
    (["Approvals"], "bac"), (["approval of brakes"], "bac"),
    # What the node does not have changes nothing.
    (["seat belt"], "abc"), (["of the"], "abc"), (["proval"], "abc"), ([], "abc"),
])  # fmt: skip
def test_a_word_counts_where_a_node_has_it(words, order):
    got = refining.lift(BRAKES, words)
    assert ids(got) == [*order]
    assert order != "abc" or got == BRAKES


def test_thai_words_are_found_in_running_text_and_scores_that_are_no_numbers_stay_last():
    nodes = [hit("a", 0.9, "ราคาประเมิน"), hit("b", 0.89, "ที่ดินแปลงนี้มีภาระจำนองอยู่"), hit("c", 0.1, "บ้าน")]
    assert ids(refining.lift(nodes, ["จำนอง"])) == ["b", "a", "c"]
    nodes = [hit("a", 0.5), hit("b", None, "approval"), hit("c", math.nan, "approval")]
    assert ids(refining.lift(nodes, ["approval"])) == ["a", "b", "c"]
    assert refining.lift([], ["approval"]) == []


def chunk(doc, at, section="one", lang="en"):
    made = of_document(f"{doc}#{at}", f"{doc} {at}", doc, section=section, lang=lang)
    made.start_char_idx = at * 100
    return made


@pytest.fixture(params=["make_index", "make_edge_index"])
def index(request):
    nodes = [chunk("d", at) for at in (3, 1, 0, 2)]
    nodes += [chunk("d", 4, "two"), chunk("e", 1), chunk("e", 2, lang="es"), TextNode(id_="alone", text="no source")]
    return request.getfixturevalue(request.param)(nodes)


def hits_of(index, *wanted):
    found = {node.node_id: node for node in index.vector_store.get_nodes(node_ids=list(wanted))}
    return [NodeWithScore(node=found[i], score=1 - at / 10) for at, i in enumerate(wanted)]


def test_chunks_beside_a_hit_are_added_below_all_hits(index):
    hits = hits_of(index, "d#1", "e#1")
    before = dump(hits)
    got = refining.expand(hits, refining.section_neighbours(index, width=1), limit=10)
    assert ids(got) == ["d#1", "e#1", "d#0", "d#2", "e#2"]
    assert got[:2] == hits
    assert scores(got) == sorted(scores(got), reverse=True)
    assert len(set(scores(got))) == 5
    assert [details(n).get(refining.EXPANDED_KEY) for n in got] == [None, None, "d#1", "d#1", "e#1"]
    assert dump(hits) == before


def test_expansion_stays_in_the_section_the_limit_and_the_callers_filters(index):
    around = refining.section_neighbours(index, width=5)
    assert [n.node_id for n in around(hits_of(index, "d#3")[0].node)] == ["d#0", "d#1", "d#2", "d#3"]
    assert [n.node_id for n in around(hits_of(index, "d#4")[0].node)] == ["d#4"]
    assert (list(around(hits_of(index, "alone")[0].node)), list(around(chunk("gone", 1)))) == ([], [])
    around = refining.section_neighbours(index, width=5)
    assert ids(refining.expand(hits_of(index, "d#1", "e#1"), around, limit=1)) == ["d#1", "e#1", "d#0"]
    assert ids(refining.expand(hits_of(index, "d#1"), around, limit=0)) == ["d#1"]
    assert refining.expand([], around, limit=3) == []
    for filters, expected in ((where("lang", "en"), ["e#1"]), (MetadataFilters(filters=[]), ["e#1", "e#2"])):
        around = refining.section_neighbours(index, width=1, filters=filters)
        assert ids(refining.expand(hits_of(index, "e#1"), around, limit=9)) == expected


def test_a_store_that_fails_is_a_typed_error(make_index, monkeypatch):
    index = make_index([chunk("d", 1)])
    node = hits_of(index, "d#1")[0].node
    monkeypatch.setattr(type(index.vector_store), "get_nodes", lambda self, **kwargs: 1 / 0)
    with pytest.raises(StoreError, match="ZeroDivisionError"):
        refining.section_neighbours(index, width=1)(node)


# Maximal marginal relevance.
TWO_ALIKE = [hit("a", 0.9), hit("b", 0.8), hit("c", 0.4)]
VECTORS = {"a": [1, 0], "b": [1, 0], "c": [0, 1]}


def test_a_node_like_one_chosen_before_gives_way_unless_relevance_alone_counts():
    before = dump(TWO_ALIKE)
    assert ids(refining.mmr(TWO_ALIKE, VECTORS, top_k=2, trade_off=0.5)) == ["a", "c"]
    assert ids(refining.mmr(TWO_ALIKE, VECTORS, top_k=2, trade_off=0.9)) == ["a", "b"]
    assert dump(TWO_ALIKE) == before
    assert refining.mmr(TWO_ALIKE, VECTORS, top_k=2, trade_off=1.0) == TWO_ALIKE[:2]
    assert refining.mmr([], {}, top_k=2, trade_off=0.5) == []


@pytest.mark.parametrize("vector", [None, [0, 0], [math.nan, 1], [1, 0, 0]])
def test_a_node_without_a_usable_vector_is_like_none(vector):
    vectors = {"a": [1, 0], "c": [1, 0], **({} if vector is None else {"b": vector})}
    assert ids(refining.mmr(TWO_ALIKE, vectors, top_k=2, trade_off=0.5)) == ["a", "b"]


def brute_force(relevance, cosines, top_k, trade_off):
    chosen = []
    while len(chosen) < min(top_k, len(relevance)):
        rest = [i for i in range(len(relevance)) if i not in chosen]
        near = {i: max((cosines[i][j] for j in chosen), default=0) for i in rest}
        gains = {i: trade_off * relevance[i] - (1 - trade_off) * near[i] for i in rest}
        chosen.append(max(rest, key=lambda i: (round(gains[i], 9), -i)))
    return chosen


@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(-3, 3), st.integers(-3, 3)), min_size=1, max_size=8),
    st.integers(1, 9),
    st.integers(0, 99),
)
def test_it_equals_the_definition(rows, top_k, percent):
    nodes = [hit(str(i), float(-i * 20 + s)) for i, (s, _, _) in enumerate(rows)]
    vectors = {str(i): [x, y] for i, (_, x, y) in enumerate(rows)}
    values = np.array([n.score for n in nodes])
    span = np.ptp(values)
    relevance = (values - values.min()) / span if span else np.ones(len(values))
    units = [np.array(v) / (np.linalg.norm(v) or 1) for v in vectors.values()]
    cosines = [[float(a @ b) for b in units] for a in units]
    expected = brute_force(relevance, cosines, top_k, percent / 100)
    got = [int(i) for i in ids(refining.mmr(nodes, vectors, top_k=top_k, trade_off=percent / 100))]
    assert len(got) == len(set(got)) == len(expected)

    def gain(order, at):
        near = max((cosines[order[at]][j] for j in order[:at]), default=0)
        return round(percent / 100 * relevance[order[at]] - (1 - percent / 100) * near, 6)

    def gains(order):
        return [gain(order, at) for at in range(len(order))]

    assert got == expected or gains(got) == gains(expected)


# Rerankers.
THREE = [hit("a", 0.9), hit("b", 0.8), hit("c", 0.7)]
KEY = "canary-7f3a"


def llm_reranker(*replies):
    client, llm = client_of(*replies)
    return refining.LLMReranker(client, boundary=lambda: "k3v9q2xz"), llm


class Model:
    """A cross-encoder that gives these scores, or a service that gives this reply; or both fail."""

    def __init__(self, given):
        self.given, self.calls = given, []

    def predict(self, pairs, **kwargs):
        self.calls.append(pairs)
        if isinstance(self.given, Exception):
            raise self.given
        return self.given

    def rerank(self, **kwargs):
        return SimpleNamespace(results=[SimpleNamespace(index=i, relevance_score=s) for i, s in self.predict(kwargs)])


@pytest.fixture
def reranker(monkeypatch):
    """Make a reranker by name whose package has this model."""

    def make(name, given):
        model = given if not isinstance(given, (list, Exception)) else Model(given)
        package = SimpleNamespace(CrossEncoder=lambda name: made.append(name) or model, ClientV2=lambda api_key: model)
        made, packages = [], {"sentence_transformers": package, "cohere": package}
        monkeypatch.setattr(importlib, "import_module", packages.__getitem__)
        model.made = made
        reranker = (
            refining.CohereReranker(Secret(KEY), "rerank-v3.5")
            if name == "cohere"
            else refining.CrossEncoderReranker("m")
        )
        return reranker, model

    return make


@pytest.mark.parametrize(
    ("name", "given"),
    [("llm", "3, 1, 2"), ("cross_encoder", [0.2, 0.1, 0.9]), ("cohere", [(2, 0.9), (0, 0.2), (1, 0.1)])],
)
def test_nodes_come_in_the_new_order_as_copies(name, given, reranker):
    before = dump(THREE)
    made, _ = llm_reranker(given) if name == "llm" else reranker(name, given)
    got = made.rerank("q", THREE, 5.0)
    assert (ids(got), scores(got)) == (["c", "a", "b"], sorted(scores(got), reverse=True))
    assert all(math.isfinite(score) for score in scores(got))
    assert [source_scores(entry)["retrieved"] for entry in got] == [0.7, 0.9, 0.8]
    assert dump(THREE) == before
    assert made.rerank("q", [], 5.0) == []


@pytest.mark.parametrize(("reply", "order"), [
    ("3, 1, 2", [3, 1, 2]), ("[3] > [1] > [2]", [3, 1, 2]), ("[3, 1]", [3, 1]), ("```json\n[3, 1]\n```", [3, 1]),
    ("Of the 3 passages these help:\n2, 3\nDone in 1 step.", [2, 3]), ("3\n1\n2", [3, 1, 2]),
    ("Best is 2, then passage 3.", [2, 3]), ("0, 99, -1, 2, 2, 3", [1, 2, 3]), ("2.5 stars for 3", [3]),
])  # fmt: skip
def test_orders_are_read_in_any_usual_form(reply, order):
    assert refining.parse_order(reply, 3) == order


@pytest.mark.parametrize("reply", ["none of them", "", "99", "x" * 100_000, "9" * 100_000])
def test_a_reply_without_an_order_is_a_typed_error(reply):
    with pytest.raises(LLMOutputError):
        refining.parse_order(reply, 3)


@given(st.text(max_size=200), st.integers(1, 30))
def test_any_reply_gives_distinct_numbers_in_range(reply, count):
    try:
        order = refining.parse_order(reply, count)
    except LLMOutputError:
        return
    assert len(set(order)) == len(order)
    assert all(1 <= number <= count for number in order)


def test_the_prompt_is_bounded_and_framed_and_one_node_needs_none():
    many = [hit(f"n{i:03d}", 1 - i / 1000, "word " * 10_000) for i in range(100)]
    reranker, llm = llm_reranker("20, 1")
    got = reranker.rerank("which?", many, 5.0)
    assert ids(got)[:3] == ["n019", "n000", "n001"]
    assert ids(got)[-1] == "n099"  # what the model leaves out follows in its order
    assert len(llm.prompts[0]) < 20_000
    assert llm.prompts[0].count("<<k3v9q2xz passage") == refining.MAX_PASSAGES
    assert llm.prompts[0].rindex("which?") < llm.prompts[0].index("Order the passages")
    reranker, llm = llm_reranker("1")
    assert (reranker.rerank("q", THREE[:1], 5), llm.prompts) == (THREE[:1], [])


def test_the_cross_encoder_is_loaded_once_and_cohere_asked_once_without_retries(reranker):
    made, model = reranker("cross_encoder", [0.1, 0.2, 0.3])
    made.rerank("q", THREE, 5.0)
    made.rerank("q", THREE, 5.0)
    assert model.made == ["m"]
    assert model.calls[0][0] == ("q", "text of a")
    made, model = reranker("cohere", [(0, 0.1), (1, 0.2), (2, 0.3)])
    made.rerank("q", THREE, 7.5)
    options = {"timeout_in_seconds": 8, "max_retries": 0}
    told = {"model": "rerank-v3.5", "query": "q", "documents": ["text of a", "text of b", "text of c"]}
    assert model.calls == [told | {"top_n": 3, "request_options": options}]


@pytest.mark.parametrize(
    ("name", "given"),
    [
        *(("cross_encoder", given) for given in ([0.1], [0.1, 0.2, math.nan], [])),
        *(("cohere", [(0, 0.1), *more]) for more in ([], [(0, 0.2), (1, 0.3)], [(1, 0.3), (7, 0.3)])),
        ("cohere", [(-1, 0.1), (1, 0.2), (7, 0.3)]),
    ],
)
def test_scores_or_indices_that_do_not_fit_are_refused(name, given, reranker):
    with pytest.raises(LLMOutputError):
        reranker(name, given)[0].rerank("q", THREE, 5.0)


def test_failures_are_typed_and_hide_the_key_and_a_model_that_hangs_is_left(reranker, gate):
    made, _ = reranker("cohere", RuntimeError(f"401 for key {KEY}"))
    with pytest.raises(LLMError) as caught:
        made.rerank("q", THREE, 5.0)
    assert KEY not in f"{caught.value} {made!r} {vars(made)}"
    assert "RuntimeError" in "".join(traceback.format_exception_only(caught.type, caught.value))
    with pytest.raises(LLMError, match="OSError"):
        reranker("cross_encoder", OSError("disk"))[0].rerank("q", THREE, 5.0)
    made, _ = reranker("cross_encoder", SimpleNamespace(predict=lambda pairs, **kwargs: gate.wait(10)))
    with pytest.raises(DeadlineExceededError):
        made.rerank("q", THREE, 0.05)


@pytest.mark.parametrize("made", [refining.CrossEncoderReranker("m"), refining.CohereReranker(Secret("k"), "m")])
def test_a_missing_extra_is_named(monkeypatch, made):
    monkeypatch.setattr(importlib, "import_module", Mock(side_effect=ImportError("no such package")))
    with pytest.raises(ConfigError, match=r"agentic-retriever\[rerank\]"):
        made.rerank("q", THREE, 5.0)


def test_the_settings_choose():
    config = RouterConfig(cohere_api_key=KEY)
    client, _ = client_of("1")
    assert refining.make_reranker(config, client) is None
    assert isinstance(refining.make_reranker(config.with_changes(reranker="llm"), client), refining.LLMReranker)
    assert isinstance(
        refining.make_reranker(config.with_changes(reranker="cross_encoder"), None), refining.CrossEncoderReranker
    )
    assert isinstance(refining.make_reranker(config.with_changes(reranker="cohere"), None), refining.CohereReranker)
    for name in ("cross_encoder:m", "cohere:m"):
        assert "m" in vars(refining.make_reranker(config.with_changes(reranker=name), None)).values()
    assert KEY not in repr(config)
    with pytest.raises(ConfigError, match="needs a model"):
        refining.make_reranker(config.with_changes(reranker="llm"), None)
    with pytest.raises(ConfigError, match="cohere_api_key"):
        refining.make_reranker(RouterConfig(reranker="cohere"), None)
    with pytest.raises(ConfigError, match="none, llm, cross_encoder, cross_encoder:MODEL, cohere or cohere:MODEL"):
        RouterConfig(reranker="bert")
