"""The paths that clients of before call, with exactly their fields."""

import pytest
from service_clients import pdf
from small_indexes import QUESTION

DOCUMENTS = "/api/admin/regulatory-documents"
RAG = "/api/admin/rag"
LAW = pdf("Article 1. The cat sleeps sixteen hours a day.")


def form(name="law.pdf", data=None, **fields):
    known = {"title": "Law of cats", "document_type": "reglamento"} | fields
    return {"files": {"file": (name, LAW if data is None else data, "application/pdf")}, "data": known}


async def test_the_life_of_a_regulatory_document(client):
    assert (await client.get(DOCUMENTS)).json() == []
    made = await client.post(DOCUMENTS, **form())
    assert made.status_code == 200
    record = made.json()
    assert record["status"] == "pending"
    assert (record["title"], record["document_type"]) == ("Law of cats", "reglamento")
    place = f"{DOCUMENTS}/{record['id']}"
    assert [one["id"] for one in (await client.get(DOCUMENTS)).json()] == [record["id"]]
    assert (await client.get(place)).json()["id"] == record["id"]
    assert (await client.post(f"{place}/reprocess")).json()["status"] == "pending"
    assert (await client.delete(place)).json()["is_active"] is False
    assert (await client.get(place)).json()["status"] == "inactive"
    assert (await client.post(f"{place}/reprocess")).status_code == 422  # until it is active again
    assert (await client.get(f"{DOCUMENTS}/nothing")).status_code == 404


@pytest.mark.parametrize("sent", [form("law.docx"), form("law.pdf", b"not one"), form("law", LAW)])
async def test_only_pdf_files_are_allowed(client, sent):
    response = await client.post(DOCUMENTS, **sent)
    assert response.status_code == 400
    assert response.json()["detail"] == "Only PDF files allowed"


@pytest.mark.parametrize("kind", ["orden", "real_decreto"])
async def test_kinds_of_documents(client, kind):
    assert (await client.post(DOCUMENTS, **form(document_type=kind))).status_code == 200
    assert (await client.post(DOCUMENTS, **form(document_type="poem"))).status_code == 422


async def test_questions_of_the_assistant(client):
    first = (await client.post(f"{RAG}/query", json={"query": QUESTION, "user_id": "u1"})).json()
    assert set(first) == {"answer", "citations", "performance", "query_id"}
    cited = first["citations"][0]
    assert set(cited) == {
        "document_title", "article_number", "section_title", "page_numbers", "similarity_score", "rerank_score",
        "content_preview",
    }  # fmt: skip
    assert cited["document_title"] == "cats"
    assert cited["rerank_score"] is None
    assert set(first["performance"]) == {
        "embedding_ms", "retrieval_ms", "rerank_ms", "llm_ms", "total_ms", "cache_hit",
    }  # fmt: skip
    again = (await client.post(f"{RAG}/query", json={"query": QUESTION, "conversation_id": None})).json()
    assert (first["performance"]["cache_hit"], again["performance"]["cache_hit"]) == (False, True)
    entries = (await client.get(f"{RAG}/queries", params={"limit": 50})).json()
    assert [entry["id"] for entry in entries] == [again["query_id"], first["query_id"]]
    assert set(entries[0]) == {
        "id", "query_text", "complexity", "llm_tier", "was_cache_hit", "total_ms", "created_at",
    }  # fmt: skip
    assert (entries[0]["was_cache_hit"], entries[0]["query_text"]) == (True, QUESTION)


async def test_figures_of_the_assistant(client):
    for _ in range(2):
        await client.post(f"{RAG}/query", json={"query": QUESTION})
    analytics = (await client.get(f"{RAG}/analytics")).json()
    assert {name: analytics[name] for name in ("total_queries", "simple_queries", "complex_queries")} == {
        "total_queries": 2, "simple_queries": 2, "complex_queries": 0,
    }  # fmt: skip
    assert analytics["cache_hit_rate"] == 0.5
    assert set(analytics) == {
        "total_queries", "simple_queries", "complex_queries", "cache_hit_rate", "avg_response_time_ms",
        "cost_savings_usd",
    }  # fmt: skip
    routing = (await client.get("/llm-metrics/routing")).json()
    assert routing == {
        "total_requests": 2, "local_requests": 2, "cloud_requests": 0, "fallback_requests": 0, "cost_savings_usd": 0.0,
        "local_percentage": 100.0,
    }  # fmt: skip
    assert (await client.post(f"{RAG}/cache/clear")).json() == {"cleared_count": 1}
    health = (await client.get(f"{RAG}/health")).json()
    assert set(health) == {"ollama", "qdrant", "reranker", "embeddings_cached"}
    assert (health["qdrant"], health["reranker"]) == (True, False)
    assert health["embeddings_cached"] > 0


async def test_the_plain_api(client):
    answer = (await client.post("/api/query", json={"question": QUESTION, "namespace": "animals"})).json()
    assert set(answer) == {"answer", "citations", "metadata"}
    cited = answer["citations"][0]
    assert set(cited) == {"id", "document", "source", "reference", "page", "excerpt", "url", "confidence"}
    assert cited["document"] == "cats"
    assert len(cited["excerpt"]) <= 200
    assert f'<mark id="span">{cited["excerpt"]}</mark>' in (await client.get(cited["url"])).text
    assert set(answer["metadata"]) == {
        "query_type", "entities_detected", "confidence_overall", "sources_count", "response_time_ms",
    }  # fmt: skip
    assert answer["metadata"]["sources_count"] == 1
    assert (await client.post("/api/query", json={"question": QUESTION, "namespace": "no"})).status_code == 404
    sources = (await client.get("/api/sources")).json()
    assert set(sources) == {"sources", "namespaces"}
    assert sources["namespaces"] == ["animals", "planets"]
    assert set((await client.get("/api/health")).json()) == {"status", "service", "version"}
