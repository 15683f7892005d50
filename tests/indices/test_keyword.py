import io
import json
import logging
import math
import os
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llama_index.core.schema import NodeRelationship, RelatedNodeInfo, TextNode
from waiting import in_threads

from agentic_retriever.errors import ConfigError, IndexingError, InvalidQueryError, StoreDamagedError, StoreError
from agentic_retriever.indices.keyword import KeywordIndex, TitledReferences
from agentic_retriever.stores import files as sealed_folder
from agentic_retriever.text import Tokenizer


@dataclass(frozen=True)
class Letters:
    """Each character is a token, so that a few letters make a corpus with many repetitions and ties."""

    fingerprint: str = "letters"

    def tokens(self, text: str) -> list[str]:
        return [c for c in text if c.isalpha()]

    query_tokens = weighed_tokens = tokens


def build(texts, tokenizer=Letters(), **kwargs):
    items = texts.items() if isinstance(texts, dict) else texts
    return KeywordIndex.build(items, tokenizer=tokenizer, version=1, **kwargs)


def plain_bm25(texts: dict[str, str], query: str, k1: float, b: float) -> dict[str, float]:
    """BM25 as the paper writes it, with Lucene's idf, one node and one term at a time."""
    terms = {node_id: Counter(Letters().tokens(text)) for node_id, text in texts.items()}
    lengths = {node_id: sum(counts.values()) for node_id, counts in terms.items()}
    mean = sum(lengths.values()) / len(lengths)
    scores = {}
    for node_id, counts in terms.items():
        score = 0.0
        for term in Letters().tokens(query):
            df = sum(1 for other in terms.values() if term in other)
            idf = math.log(1 + (len(terms) - df + 0.5) / (df + 0.5))
            tf = counts[term]
            score += idf * tf / (tf + k1 * (1 - b + b * lengths[node_id] / mean)) if tf else 0.0
        if score > 0:
            scores[node_id] = score
    return scores


CORPORA = st.dictionaries(
    st.text("nmxyz", min_size=1, max_size=4), st.text("abcdef ", max_size=12), min_size=1, max_size=25
)


@settings(deadline=None, max_examples=150)
@given(CORPORA, st.text("abcdefg ", max_size=6), st.floats(0, 3), st.floats(0, 1), st.integers(1, 30))
def test_scores_order_and_ties_equal_a_plain_bm25(texts, query, k1, b, top_k):
    found = build(texts, k1=k1, b=b).search(query, top_k)
    expected = plain_bm25(texts, query, k1, b) if "".join(texts.values()).strip() else {}
    assert len(found) == min(top_k, len(expected))
    assert found == sorted(found, key=lambda pair: (-pair[1], pair[0]))
    for node_id, score in found:
        assert score == pytest.approx(expected[node_id], rel=1e-5)
    if found:
        left_out = [score for node_id, score in expected.items() if node_id not in dict(found)]
        assert max(left_out, default=0.0) <= found[-1][1] * (1 + 1e-5)


@settings(deadline=None, max_examples=150)
@given(CORPORA, st.text("abcdef", min_size=1, max_size=4), st.sets(st.text("nmxyz", min_size=1, max_size=4)),
       st.integers(1, 30))  # fmt: skip
def test_a_filter_is_exact_whatever_its_form(texts, query, allowed, top_k):
    index = build(texts)
    expected = [pair for pair in index.search(query, len(texts)) if pair[0] in allowed][:top_k]
    assert index.search(query, top_k, allowed=allowed) == expected
    assert index.search(query, top_k, allowed=sorted(allowed)) == expected
    assert index.search(query, top_k, allowed=lambda ids: [i for i in ids if i in allowed]) == expected


@pytest.mark.parametrize("few", [True, False])
def test_a_filter_is_exact_over_many_batches(few):
    texts = {f"n{i:05d}": "a" * (1 + i % 7) + "b" * (i % 3) for i in range(6_000)}
    index = build(texts)
    everything = index.search("ab", len(texts))
    assert everything == sorted(everything, key=lambda pair: (-pair[1], pair[0]))
    allowed = {everything[-1][0], everything[4_321][0]} if few else set(texts) - {i for i, _ in everything[:3_000]}
    expected = [pair for pair in everything if pair[0] in allowed][:5]
    asked: list[str] = []

    def one_batch(ids):
        asked.extend(ids)
        return allowed.intersection(ids)

    assert index.search("ab", 5, allowed=allowed) == index.search("ab", 5, allowed=one_batch) == expected
    assert asked == [i for i, _ in everything[: len(asked)]], "asked once for each id, best first"
    assert len(asked) < 6_000 or few


def test_a_filter_function_cannot_bring_in_other_ids_and_is_asked_no_more_than_needed():
    index = build({"x": "a", "y": "ab"})
    assert [i for i, _ in index.search("a", 5, allowed=lambda ids: ["ghost", "x", *ids])] == ["x", "y"]
    assert index.search("a", 5, allowed=lambda ids: ["ghost"]) == []
    assert (index.search("a", 5, allowed=[]), index.search("a", 5, allowed={"ghost"})) == ([], [])
    index = build({f"n{i:04d}": "a" for i in range(2_000)})
    sizes = []
    index.search("a", 5, allowed=lambda ids: sizes.append(len(ids)) or ids)
    assert len(sizes) == 1
    assert sizes[0] < 200


def test_without_known_tokens_nothing_is_found_a_word_twice_counts_twice_and_a_node_id_twice_is_refused():
    for texts in ({}, {"n": ""}, {"n": "", "m": "  ", "o": "123"}):
        index = build(texts)
        assert len(index) == len(texts)
        assert index.search("abc", 3) == index.search("abc", 3, allowed={"n"}) == []
    index = build({"n": "ab", "m": "c"})
    assert [query for query in ("", "   ", "?!", "zzz", "\x00") if index.search(query, 3)] == []
    index = build({"n": "the cat sat on the mat", "m": "of the and to"}, Tokenizer(language="en"))
    assert (index.search("the of and", 3), [i for i, _ in index.search("cats", 3)]) == ([], ["n"])
    index = build({"n": "abc", "m": "bcd"})
    once, twice = dict(index.search("a", 5)), dict(index.search("aa", 5))
    assert twice["n"] == pytest.approx(2 * once["n"])
    with pytest.raises(IndexingError, match="'n' comes twice"):
        build([("n", "a"), ("m", "b"), ("n", "c")])
    texts = {"b": "ab", "a": "ab", "c": "x"}
    assert build(pair for pair in texts.items()).search("a", 5) == build(texts).search("a", 5)
    assert [i for i, _ in build(texts).search("ab", 5)] == ["a", "b"]


@pytest.mark.parametrize(("query", "text"), [
    ("แมว", "แมวนั่งอยู่บนเสื่อ"), ("猫", "那只猫坐在垫子上"), ("量子", "我们研究量子计算"),
    ("量子コンピュータ", "次世代の量子コンピュータを研究する"),
    ("बिल्ली", "बिल्ली चटाई पर बैठी है"), ("القطة", "جلست القطة على السجادة"),
    ("C++", "Templates in C++ and macros"), ("A-12", "see form A-12 for details"),
    ("6.2.1", "Section 6.2.1 applies"),
])  # fmt: skip
def test_a_word_in_one_node_finds_it_in_every_script(query, text):
    others = {
        "th": "สุนัขวิ่งเล่นในสวนสาธารณะ", "zh": "今天天气很好", "ja": "明日は雨が降るでしょう", "hi": "आज मौसम अच्छा है",
        "ar": "الطقس جميل اليوم", "en": "Section 6.2.2 of form B-12 on templates", "es": "el tiempo es bueno",
    }  # fmt: skip
    found = build({**others, "wanted": text}, Tokenizer()).search(query, 3)
    assert found[0][0] == "wanted"
    assert found[0][1] > 0


@given(CORPORA, st.text("abcdefg ", max_size=6))
def test_the_share_of_a_query_that_is_known_agrees_with_a_plain_count(texts, query):
    counts = [sum(letter in text for text in texts.values()) for letter in set(query) - {" "}]
    rarity = [math.log(1 + (len(texts) - count + 0.5) / (count + 0.5)) for count in counts]
    known = sum(rare for rare, count in zip(rarity, counts, strict=True) if count)
    assert build(texts).known_share(query) == pytest.approx(known / sum(rarity) if rarity else 0.0)


def test_bad_parameters_are_refused():
    for k1, b in ((-0.1, 0.5), (math.nan, 0.5), (math.inf, 0.5), (1.2, -0.1), (1.2, 1.1), (1.2, math.nan)):
        with pytest.raises(ConfigError, match="BM25 needs"):
            build({"n": "a"}, k1=k1, b=b)
    for top_k in (0, -1, "5", True, None, 2.0):
        with pytest.raises(InvalidQueryError, match="top_k"):
            build({"n": "a"}).search("a", top_k)


def test_many_threads_read_at_once():
    index = build({f"n{i:03d}": "abcdef"[: 1 + i % 6] * (1 + i % 4) for i in range(300)})
    queries = ["a", "bc", "fed", "aabbcc", "zz"]
    expected = {q: index.search(q, 7) for q in queries}

    def read(_reader):
        for _ in range(40):
            assert [q for q in queries if index.search(q, 7) != expected[q]] == []

    in_threads(read, range(8))


def test_building_is_silent(caplog, capfd):
    with caplog.at_level(logging.DEBUG):
        build({"n": "abc"})
    assert [r for r in caplog.records if r.name.startswith("bm25s")] == []
    assert capfd.readouterr() == ("", "")
    assert logging.getLogger("bm25s").level == logging.WARNING


ENGLISH = Tokenizer(language="en")
TEXTS = {"n1": "running cats", "n2": "the cat runs", "n3": "แมวนั่งบนเสื่อ", "n4": ""}
FILES = ("scores.npy", "rows.npy", "starts.npy", "node_ids.json", "vocabulary.json")
QUERIES = ("run", "cats", "the", "แมว", "dog", "")


@pytest.fixture
def saved(tmp_path):
    folder = tmp_path / "keyword"
    index = KeywordIndex.build(TEXTS.items(), tokenizer=ENGLISH, version=7, k1=1.2, b=0.5)
    index.save(folder)
    return folder, index


def load(folder, version=7, tokenizer=ENGLISH):
    return KeywordIndex.load(folder, tokenizer=tokenizer, version=version)


def test_a_saved_view_answers_as_before_but_not_for_another_version_or_tokenizer(saved, tmp_path):
    folder, index = saved
    loaded = load(folder)
    assert (len(loaded), loaded.version, loaded.k1, loaded.b) == (4, 7, 1.2, 0.5)
    assert [loaded.search(q, 3) for q in QUERIES] == [index.search(q, 3) for q in QUERIES]
    assert loaded.search("run", 3, allowed={"n2"}) == index.search("run", 3, allowed={"n2"}) != []
    assert load(tmp_path / "absent") is None
    assert load(folder, version=8) is None
    assert load(folder, tokenizer=Tokenizer(language="es")) is None
    assert load(folder) is not None
    KeywordIndex.build([], tokenizer=ENGLISH, version=1).save(tmp_path / "k")
    assert load(tmp_path / "k", 1).search("cat", 3) == []


@settings(max_examples=25, deadline=None)
@given(texts=st.dictionaries(st.text(max_size=5), st.text(max_size=20), max_size=6))
def test_any_ids_and_texts_survive(tmp_path_factory, texts):
    folder = tmp_path_factory.mktemp("any") / "keyword"
    index = KeywordIndex.build({**texts, "half\ud800": "lone\udfff sign"}.items(), tokenizer=Tokenizer(), version=1)
    index.save(folder)
    loaded = KeywordIndex.load(folder, tokenizer=Tokenizer(), version=1)
    asked = [*texts.values(), "sign"]
    assert [loaded.search(t, 9) for t in asked] == [index.search(t, 9) for t in asked]


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", ["cut", "emptied", "edited", "removed"])
def test_damage_is_found_and_named(saved, name, damage):
    file = saved[0] / name
    data = file.read_bytes()
    if damage == "removed":
        file.unlink()
    elif damage == "edited":
        file.write_bytes(data[:-3] + bytes([data[-3] ^ 1]) + data[-2:])
    else:
        file.write_bytes(data[: len(data) // 2] if damage == "cut" else b"")
    with pytest.raises(StoreDamagedError, match=name.replace(".", r"\.")):
        load(saved[0])


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"header": {}, "files": {}}', b"[" * 100_000,
     b'{"header": 1, "files": 2, "seal": 3}', "edited", None],
)  # fmt: skip
def test_a_broken_manifest_is_found_and_named(saved, content):
    file = saved[0] / "manifest.json"
    if content == "edited":
        manifest = json.loads(file.read_text())
        manifest["header"]["version"] = 8
        file.write_text(json.dumps(manifest))
    elif content is None:
        file.unlink()
    else:
        file.write_bytes(content)
    with pytest.raises(
        StoreDamagedError, match=r"manifest\.json.*edited" if content == "edited" else r"manifest\.json"
    ):
        load(saved[0], version=8)


class Bomb:
    """Runs when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (Path.touch, (self.path,))


def test_a_sealed_folder_with_files_that_disagree_or_hold_pickles_is_damage(saved, tmp_path):
    folder, _index = saved
    pickled = io.BytesIO()
    np.save(pickled, np.array([Bomb(tmp_path / "ran")], dtype=object), allow_pickle=True)
    header, files = sealed_folder.read_header(folder), sealed_folder.read_files(folder, FILES)
    for name, content, said in (
        ("node_ids.json", b'["n1", "n2"]', "disagree"),
        ("starts.npy", b"not numpy", "cannot be read back"),
        ("scores.npy", pickled.getvalue(), "cannot be read back"),
    ):
        sealed_folder.write_sealed(folder, header, {**files, name: content})
        with pytest.raises(StoreDamagedError, match=said):
            load(folder)
    assert not (tmp_path / "ran").exists()


def test_a_full_disk_keeps_the_old_view_saving_again_replaces_it_and_a_file_in_the_way_is_an_error(
    saved, tmp_path, monkeypatch
):
    folder, index = saved
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", Mock(side_effect=OSError(28, "No space left on device")))
        with pytest.raises(StoreError, match="No space left on device; free some space"):
            KeywordIndex.build([("z", "zebra")], tokenizer=ENGLISH, version=8).save(folder)
    assert load(folder).search("run", 3) == index.search("run", 3)
    assert [p.name for p in folder.parent.iterdir()] == ["keyword"]
    (folder / "leftover").write_text("of an older format")
    (folder.parent / ".keyword.tmp").mkdir()
    (folder.parent / ".keyword.tmp" / "half").write_text("of a run that was killed")
    KeywordIndex.build([("z", "zebra")], tokenizer=ENGLISH, version=8).save(folder)
    assert load(folder, 8).search("zebra", 3)[0][0] == "z"
    assert [p.name for p in folder.parent.iterdir()] == ["keyword"]
    assert not (folder / "leftover").exists()
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreError):
        KeywordIndex.build([], tokenizer=ENGLISH, version=1).save(tmp_path / "file" / "keyword")


@pytest.mark.skipif(sys.platform == "win32" or os.geteuid() == 0, reason="permissions bind no administrator")
def test_an_unreadable_file_is_a_store_error(saved):
    (saved[0] / "rows.npy").chmod(0)
    with pytest.raises(StoreError, match=r"rows\.npy"):
        load(saved[0])


@pytest.mark.parametrize("reference", [
    "Section 6.1, “How many releases are there?”", "Abschnitt 6.1, „How many releases are there?“",
    "Section 6.1, « How many releases are there? »", "Раздел 6.1, «How many releases are there?»",
    "第 6.1 节 “How many releases are there?”", "6.1「How many releases are there?」",
    'the answer to "How many releases are there?"', "also «How many releases are there?»",
])  # fmt: skip
@pytest.mark.parametrize("same_document", [True, False])
def test_a_title_in_a_reference_is_found_with_the_section_that_it_names(reference, same_document):
    def node(name, text, section, doc_id):
        source = {NodeRelationship.SOURCE: RelatedNodeInfo(node_id=doc_id)}
        return TextNode(id_=name, text=text, metadata={"section": section}, relationships=source, start_char_idx=0)

    other = "one" if same_document else "two"
    nodes = [
        node("near", f"For more, see {reference} and then go on.", "5.4 Choosing", "one"),
        node("meant", "There are three of them.", "6 Archives > 6.1", other),
        node("outside", "See Section 9.9, “Which cakes are eaten”. I asked “Who bakes?”", "7.2", "one"),
        node("deeper", "There is more.", "6 Archives > 6.1.2", other),
    ]
    titles = TitledReferences()
    items = [(one.node_id, titles.without(one, one.text)) for one in nodes]
    words = KeywordIndex.build(items, tokenizer=Tokenizer("en"), version=1, said=titles.said)
    assert [node_id for node_id, _ in words.search("how many releases", 5)] == ["meant"] * ("6.1" in reference)
    assert [node_id for node_id, _ in words.search("which cakes are eaten", 5)] == ["outside"]
    assert [node_id for node_id, _ in words.search("go on", 5)] == ["near"]
    assert [node_id for node_id, _ in words.search("who bakes", 5)] == ["outside"]
    assert titles.without(nodes[0], "次は 「これは何ですか?」 を見てください。") == "次は  を見てください。"
    assert "何" in titles.without(nodes[0], "彼は 「これは何ですか?」 と聞いた。")


def test_a_number_that_several_other_documents_have_is_nobodys():
    titles = TitledReferences()
    for at, section in enumerate(("1.1", "6.1", "6.1")):
        source = {NodeRelationship.SOURCE: RelatedNodeInfo(node_id=f"d{at}")}
        text = "see Section 6.1, “Releases”" if at == 0 else "text"
        titles.without(TextNode(id_=f"n{at}", text=text, metadata={"section": section}, relationships=source), text)
    assert list(titles.said()) == [("n0", "Releases")]
