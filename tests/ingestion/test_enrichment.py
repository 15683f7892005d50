"""What rules find of a document beside its text, where it comes from, and who goes before whom."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from agentic_retriever.config import RouterConfig
from agentic_retriever.errors import ConfigError
from agentic_retriever.ingestion import BoundedReader, SkippedSource, discover, read_source
from agentic_retriever.ingestion.chunking import ChunkSettings, chunk_document
from agentic_retriever.ingestion.documents import SourceDocument
from agentic_retriever.ingestion.enrichment import (
    count_articles,
    enrich,
    find_by_patterns,
    iso_date,
    load_patterns,
    patterns_file,
    read_description,
    with_metadata,
)
from agentic_retriever.llm import build_client
from agentic_retriever.llm.prompts import DESCRIBED
from agentic_retriever.sample import DATA
from agentic_retriever.schema import Tier
from agentic_retriever.testing import FakeLLM

MEXICAN = DATA / "patterns.yaml"
RMF = """Resolución Miscelánea Fiscal para 2024
Publicada en el Diario Oficial de la Federación el 29 de diciembre de 2023

Artículo 1. El SAT y el Banco de México emiten reglas sobre CFDI.

Artículo 2. Esta resolución entrará en vigor el 1 de enero de 2024 y trata del ISR.
"""


def document(text: str, *, kind: str = "txt", source: str = "/in/a.txt", **fields) -> SourceDocument:
    return SourceDocument(**{"doc_id": "a", "title": "A", "text": text, "kind": kind, "source": source} | fields)


@pytest.mark.parametrize(("text", "expected"), [
    (RMF, {"source": "SAT", "namespace": "mx/tax", "document_type": "miscellaneous resolution",
           "document_number": "2024", "document_date": "2023-12-29", "valid_from": "2024-01-01",
           "article_count": 2, "entities": ["SAT", "Banxico"], "tags": ["ISR", "CFDI"]}),
    ("Circular 14/2017\nCiudad de México, a 4 de julio de 2017. El Banco de México regula el SPEI.",
     {"source": "Banxico", "document_type": "circular", "document_number": "14/2017",
      "document_date": "2017-07-04", "tags": ["payments"]}),
    ("Comisión Nacional Bancaria y de Valores. Disposiciones de carácter general.\nArtículo 5 Bis. Capital neto.",
     {"source": "CNBV", "document_type": "general provisions", "article_count": 1, "tags": ["capital"]}),
])  # fmt: skip
def test_the_sample_knows_mexican_regulators(text, expected):
    found = find_by_patterns(document(text), load_patterns(MEXICAN))
    assert expected.items() <= found.items()


def test_a_document_of_no_source_has_none():
    assert find_by_patterns(document("The tides of the sea rise twice a day."), load_patterns(MEXICAN)) == {}


def test_what_a_document_brings_goes_before_what_is_found_and_each_says_where_from():
    brought = document(RMF, kind="md", metadata={"document_type": "rules", "date": "2020-05-06"}, title="Rules of 2019")
    values, origins = enrich(replace(brought, found=find_by_patterns(brought, load_patterns(MEXICAN))))
    assert (values["document_type"], origins["document_type"]) == ("rules", "front matter")
    assert (values["document_date"], origins["document_date"]) == ("2023-12-29", "text")
    assert (values["year"], origins["year"]) == (2019, "title")
    said = with_metadata(brought, {"document_type": "law", "date": None, "title": "T", "year": 1999}, "caller")
    values, origins = enrich(said)
    assert (said.title, values["document_type"], origins["document_type"]) == ("T", "law", "caller")
    assert (values["year"], "date" in values) == (1999, False)


def test_dates_of_front_matter_and_of_pdfs_count():
    values, origins = enrich(document("text", kind="pdf", metadata={"created": "2021-03-04"}))
    assert (values["document_date"], origins["document_date"]) == ("2021-03-04", "pdf")
    assert (values["year"], origins["year"]) == (2021, "pdf")
    labelled = document("Report\n\n**Date:** 5 May 2022\nDocument No.: AB-12/7\nvalid until: 2023-01-31\n")
    values, _ = enrich(labelled)
    assert (values["document_date"], values["document_number"], values["valid_until"]) == (
        "2022-05-05", "AB-12/7", "2023-01-31",
    )  # fmt: skip
    # A date somewhere in the text is not that of the document.
    assert "document_date" not in enrich(document("The year ended on 30 September 2024 with a loss."))[0]


@pytest.mark.parametrize("kind", ["jsonl", "document", "nodes"])
def test_records_and_documents_of_callers_stay_as_they_are(kind):
    given = document("Date: 5 May 2022", kind=kind, metadata={"x": 1}, title="2019")
    llm = FakeLLM(['{"tags": ["May"]}'])
    assert (enrich(given, tiers(llm))[0], llm.prompts) == ({"x": 1}, [])


# What a model is asked for, and what of its reply is taken.

LETTER = (
    """# Transport Office of Lund

Lund, 3 March 2021. To Volvo Buses: the permit for electric buses holds until 5/6/2024.

## Charging stations

"""
    + "The office counts the buses. " * 200
    + "The last word is kumquat."
)
REPLY = """Here it is:
```json
{"source": "Transport Office of Lund", "document_type": "Permit letter", "document_date": "2021-03-03",
 "valid_from": "2022-02-02", "valid_until": "2024-06-05", "language": "sv", "year": 1999,
 "entities": ["Volvo Buses", "Tesla", "Charging\\n stations", "Lund", "Lund", "Vol", "3", {"name": "Lund"}, "kumquat"],
 "tags": "electric buses"}
```"""


def tiers(primary: FakeLLM, cloud: FakeLLM | None = None):
    return build_client(RouterConfig(), models={Tier.PRIMARY: primary} | ({Tier.CLOUD: cloud} if cloud else {}))


def test_a_model_is_asked_once_for_what_rules_do_not_find_and_believed_where_the_document_says_so():
    llm = FakeLLM([REPLY])
    values, origins = enrich(document(LETTER, title="Letter", kind="md"), tiers(llm))
    assert values == {
        "source": "Transport Office of Lund", "document_type": "permit letter", "document_date": "2021-03-03",
        "valid_until": "2024-06-05", "entities": ["Volvo Buses", "Charging stations", "Lund"],
        "tags": ["electric buses"], "year": 2021,
    }  # fmt: skip
    assert (set(origins), set(origins.values())) == (set(values), {"model"})
    [prompt] = llm.prompts
    assert "Headings: Transport Office of Lund; Charging stations" in prompt
    assert "kumquat" not in prompt
    assert len(prompt) < 5_000


def test_rules_and_callers_go_before_a_model_and_it_is_not_asked_for_what_they_say():
    llm = FakeLLM([json.dumps({"document_type": "letter", "document_date": "2021-03-03", "tags": ["Lund"]})])
    given = document(f"Date: 5 May 2022\n\n{LETTER}", kind="md", metadata={"source": "me"})
    given = with_metadata(given, {"tags": None, "document_type": "law"}, "caller")  # which takes the tags away
    values, origins = enrich(replace(given, found={"entities": ["Volvo"]}), tiers(llm))
    assert values == {
        "source": "me", "document_type": "law", "document_date": "2022-05-05", "entities": ["Volvo"], "year": 2022,
    }  # fmt: skip
    assert "model" not in origins.values()
    assert [name for name in DESCRIBED if f"- {name}:" in llm.prompts[0]] == ["valid_from", "valid_until"]
    known = with_metadata(given, dict.fromkeys(DESCRIBED, "x"), "caller")
    enrich(known, tiers(llm))
    assert len(llm.prompts) == 1


@pytest.mark.parametrize(
    "reply", [RuntimeError("down"), "I cannot say.", "{" * 9_000, "[]", "{}", '{"author": "Lund"}']
)
def test_a_model_that_fails_or_says_nothing_leaves_what_rules_found(reply):
    plain = document(f"Date: 5 May 2022\n\n{LETTER}", kind="md")
    assert enrich(plain, tiers(FakeLLM([reply]))) == enrich(plain)
    assert enrich(plain)[0] == {"document_date": "2022-05-05", "year": 2022}


def test_the_cloud_stands_in_for_a_local_model_that_is_down():
    cloud = FakeLLM([REPLY])
    values, _ = enrich(document(LETTER), tiers(FakeLLM([RuntimeError("down")]), cloud))
    assert (values["document_date"], len(cloud.prompts)) == ("2021-03-03", 1)


@pytest.mark.parametrize(
    ("said", "taken"),
    [
        ({"document_type": "a report on all of it"}, {}),
        ({"document_type": "law 2"}, {}),
        ({"document_type": ["Ley", "Law"]}, {"document_type": "ley"}),
        ({"document_type": "โฉนดที่ดิน"}, {"document_type": "โฉนดที่ดิน"}),
        ({"document_date": "2021-03-04"}, {}),  # no such day in the text
        ({"document_date": "March 2021"}, {}),
        ({"document_date": 2021}, {}),
        ({"source": "LUND"}, {"source": "LUND"}),
        ({"source": "und"}, {}),
        ({"entities": ["ลุนด์", "ปลา"]}, {"entities": ["ลุนด์"]}),
        ({"entities": [f"n{n}" for n in range(99)]}, {"entities": [f"n{n}" for n in range(10)]}),
        ({"tags": ["Lund " * 20]}, {}),
    ],
)
def test_what_a_model_says_is_checked(said, taken):
    shown = "Lund, 3 March 2021. เมืองลุนด์สวย " + "Lund " * 20 + " ".join(f"n{n}" for n in range(99))
    assert read_description(json.dumps(said), tuple(DESCRIBED), shown) == taken


def test_articles_are_counted_and_nothing_found_is_embedded():
    text = "# Ley\n\n" + "\n\n".join(f"Artículo {n}. Texto del artículo {n} de la ley." for n in range(1, 8))
    plain = document(text, kind="md", title="Ley")
    values, origins = enrich(replace(plain, found={"tags": ["x"]}))
    nodes = chunk_document(replace(plain, metadata=values), ChunkSettings())
    count_articles(nodes, values, origins)
    assert (values["article_count"], origins["article_count"], values["language"]) == (7, "headings", "es")
    assert {node.metadata["article_count"] for node in nodes} == {7}
    bare = chunk_document(plain, ChunkSettings())
    assert [node.node_id for node in nodes] == [node.node_id for node in bare]  # which are made of what is embedded
    modes = [[node.get_content(metadata_mode="embed") for node in some] for some in (nodes, bare)]
    assert modes[0] == modes[1]


@pytest.mark.parametrize(
    ("text", "day"),
    [("29 de diciembre de 2023", "2023-12-29"), ("March 3, 2021", "2021-03-03"), ("2020-02-30", ""), ("May 2021", "")],
)
def test_whole_dates_are_read(text, day):
    assert iso_date(text) == day


@pytest.mark.parametrize(("text", "said"), [
    ("SAT: {match: ['(']}", "no regular expression"), ("SAT: {match: ['" + "a" * 301 + "']}", "at most 300"),
    ("SAT: {wrong: 1}", "SAT.wrong"), ("[1]", "dictionary"), ("SAT: {match: [", "cannot use the patterns"),
    ("SAT: {match: [" + "a," * 600 + "]}", "at most 500"),
])  # fmt: skip
def test_patterns_that_cannot_be_used_are_named(tmp_path, text, said):
    (tmp_path / "patterns.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=said):
        load_patterns(patterns_file(tmp_path))


def test_a_pattern_may_be_json_and_there_may_be_none(tmp_path):
    assert patterns_file(tmp_path) is None
    (tmp_path / "patterns.json").write_text(json.dumps({"*": {"tags": {"sea": ["tide"]}}}), encoding="utf-8")
    found = find_by_patterns(document("High TIDES"), load_patterns(patterns_file(tmp_path)))
    assert found == {"tags": ["sea"]}


@pytest.mark.skipif(os.name == "nt", reason="there are no limits to set there")
def test_a_pattern_without_end_costs_only_what_it_would_find(tmp_path, monkeypatch):
    monkeypatch.setattr("agentic_retriever.ingestion.readers._PATTERN_SECONDS", 0)
    patterns = tmp_path / "patterns.yaml"
    patterns.write_text("'*': {tags: {x: ['(a+)+$']}}", encoding="utf-8")
    (tmp_path / "bad.txt").write_text("a" * 60 + "b", encoding="utf-8")
    (tmp_path / "good.txt").write_text("caa", encoding="utf-8")
    code = "agentic_retriever.ingestion.readers._CODE"
    monkeypatch.setattr(code, _with_short_limit(), raising=True)
    with BoundedReader(patterns=patterns) as reader:
        bad, good = (
            list(reader.read(tmp_path / name, root=tmp_path, max_bytes=1_000, follow_links=False))
            for name in ("bad.txt", "good.txt")
        )
    assert [type(one) for one in bad] == [SkippedSource, SourceDocument]
    assert bad[0].kind == "noted"
    assert "patterns took more than" in bad[0].reason
    assert (bad[1].text[:2], bad[1].found, [one.found for one in good]) == ("aa", {}, [{"tags": ["x"]}])


def _with_short_limit() -> str:
    from agentic_retriever.ingestion import readers

    return readers._CODE.replace("; readers.serve(", "; readers._PATTERN_SECONDS = 0; readers.serve(")


def test_what_stands_in_a_file_beside_goes_before_and_is_no_document(tmp_path):
    (tmp_path / "a.md").write_text("---\nyear: 2001\ntitle: Old\n---\n\nText of a.\n", encoding="utf-8")
    (tmp_path / "a.md.meta.json").write_text('{"year": 2020, "title": "New", "team": {"name": "x"}}', encoding="utf-8")
    (tmp_path / "b.md").write_text("Text of b.", encoding="utf-8")
    (tmp_path / "b.meta.json").write_text("[1]", encoding="utf-8")
    files = discover(tmp_path)
    assert [file.name for file in files] == ["a.md", "b.md"]
    [a], b = (list(read_source(file, root=tmp_path)) for file in files)
    assert (a.title, dict(a.metadata), dict(a.origins)) == (
        "New", {"year": 2020, "team_name": "x"}, {"year": "sidecar", "title": "sidecar", "team_name": "sidecar"},
    )  # fmt: skip
    assert [Path(b[0].source).name, b[0].reason[:25], b[1].text] == [
        "b.meta.json", "holds a JSON list, not an", "Text of b.",
    ]  # fmt: skip
