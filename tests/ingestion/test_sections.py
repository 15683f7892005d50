"""The titles of main sections by their numbers: who is asked for them, what is taken, and which nodes get them."""

import pytest
from llama_index.core.schema import MetadataMode

from agentic_retriever.config import RouterConfig
from agentic_retriever.ingestion import SourceDocument
from agentic_retriever.ingestion.chunking import MAPPED_SECTION, ChunkSettings, chunk_document
from agentic_retriever.ingestion.sections import MAX_SECTIONS, SHOWN_CHARS, map_sections, read_sections, title_sections
from agentic_retriever.llm import build_client
from agentic_retriever.schema import Tier
from agentic_retriever.stores.points import searched_text
from agentic_retriever.testing import FakeLLM

WORDS = "Words about something that fills a section of its own with sentences. " * 12
BARE = "# Annex\n\n" + "\n\n".join(f"## {number}\n\n{WORDS}{number} end" for number in ("6.", "6.1", "6.2", "6.2.1"))


def cut(text: str, title: str = "Annex"):
    doc = SourceDocument(doc_id="d", title=title, text=text, kind="md")
    return chunk_document(doc, ChunkSettings(chunk_size=220, chunk_overlap=0))


def tiers(primary: FakeLLM, cloud: FakeLLM | None = None):
    models = {Tier.PRIMARY: primary} | ({Tier.CLOUD: cloud} if cloud else {})
    return build_client(RouterConfig(), models=models)


def test_a_model_is_shown_the_beginnings_and_names_main_sections_only():
    model = FakeLLM(['Sure:\n```json\n{"6.1": "Lamps", "6.2": "Brakes", "6.2.1": "Pads", "7": ""}\n```'])
    nodes = cut(BARE)
    assert map_sections(BARE, nodes, tiers(model)) == {"6.1": "Lamps", "6.2": "Brakes"}
    [prompt] = model.prompts
    assert "Section: 6.2" in prompt
    assert prompt.count(WORDS[:100]) >= 4
    assert WORDS[:SHOWN_CHARS] not in prompt  # the headings are a part of what is shown


def test_of_many_chunks_the_first_with_a_heading_are_shown():
    model = FakeLLM(["{}"])
    text = "\n\n".join(f"## {n}.1\n\n{WORDS}" for n in range(1, 60))
    map_sections(text, cut(text), tiers(model, FakeLLM(["{}"])))
    assert model.prompts[0].count("Hierarchy:") == MAX_SECTIONS


@pytest.mark.parametrize("local", [RuntimeError("down"), "I cannot say.", "{}", '{"6.2.1": "too deep"}'])
def test_the_cloud_stands_in_for_a_local_model_that_fails_or_names_nothing(local):
    cloud = FakeLLM(['[{"number": "6.2", "title": "Brakes"}]'])
    assert map_sections(BARE, cut(BARE), tiers(FakeLLM([local]), cloud)) == {"6.2": "Brakes"}
    assert len(cloud.prompts) == 1


def test_when_both_fail_there_are_none():
    both = tiers(FakeLLM([RuntimeError("down")]), FakeLLM([RuntimeError("down")]))
    assert map_sections("## 6.2 Lights\n\n" + WORDS, cut("## 6.2 Lights\n\n" + WORDS), both) == {}


def test_without_headings_no_model_is_asked():
    model = FakeLLM(["{}"])
    assert (map_sections(WORDS, cut(WORDS), tiers(model)), model.prompts) == ({}, [])


def test_without_a_model_headings_and_contents_tell():
    contents = "Contents\n\n6.2 Brakes of trailers ........ 14\n6.2.1 Pads ...... 15\n7 Tyres   16\n\n"
    text = f"{contents}## 6.1 Lamps\n\n{WORDS}\n\n## 6.2\n\n{WORDS}"
    assert map_sections(text, cut(text), None) == {"6.1": "Lamps", "6.2": "Brakes of trailers", "7": "Tyres"}
    # Lines that follow each other tell, too; a sentence that begins with a number does not.
    text = f"6.1 Lamps\n6.2 Brakes\n6.3 Tyres\n\n3.5 tonnes are allowed.\n\n## 6.2\n\n{WORDS}"
    assert map_sections(text, cut(text), None) == {"6.1": "Lamps", "6.2": "Brakes", "6.3": "Tyres"}


def test_a_reply_of_any_kind_is_read_within_bounds():
    assert read_sections('{"6.2.": " Brakes \\n of x ", "A.1": "Tests", "§ 3": "Scope", "x": "y", "4": 5}') == {
        "6.2": "Brakes of x", "A.1": "Tests", "3": "Scope",
    }  # fmt: skip
    assert (read_sections("{" * 30_000), read_sections('{"6.2": "' + "long " * 40 + '"}')) == ({}, {})


def test_nodes_get_the_title_of_their_main_section_where_their_headings_do_not_say_it():
    nodes = cut(BARE)
    before = {node.node_id: node.get_content(MetadataMode.EMBED) for node in nodes}
    title_sections(nodes, {"6": "Vehicles", "6.2": "Brakes"})
    told = {node.metadata["section_number"]: node.metadata.get(MAPPED_SECTION) for node in nodes}
    assert told == {"6": "Vehicles", "6.1": "Vehicles", "6.2": "Brakes", "6.2.1": "Brakes"}
    # The words that are searched begin with it; what is embedded, and with it every vector, is as before.
    assert all(searched_text(node) == f"{node.metadata[MAPPED_SECTION]}\n{before[node.node_id]}" for node in nodes)
    assert {node.node_id: node.get_content(MetadataMode.EMBED) for node in nodes} == before
    named = cut(f"## 6.2 Brakes\n\n{WORDS}")
    title_sections(named, {"6.2": "Brakes"})
    assert all(MAPPED_SECTION not in node.metadata and searched_text(node)[0] == "A" for node in named)
