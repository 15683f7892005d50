from __future__ import annotations

from llama_index.core.vector_stores.types import MetadataFilters

from agentic_retriever.filters import matches
from agentic_retriever.understanding.fields import FieldDictionary

DEEDS = [
    {"province": "เชียงใหม่", "district": "แม่ริม", "deed_type": "โฉนด", "area_rai": 5.5, "year": 2530},
    {"province": "ลำพูน", "district": "เมืองลำพูน", "deed_type": "น.ส.3ก", "area_rai": 8.0, "year": 2567},
    {"province": "ระยอง", "district": "ระยอง", "deed_type": "น.ส.3", "area_rai": 40, "year": 2550},
]
GOODS = [
    {
        "city": "Chiang Mai", "kind": "report", "price_eur": 1000.5, "area_m2": 100, "length_m": 30, "weight_kg": 2,
        "issued": "2019-05-01", "irrigated": True, "author": "Perlis, A. J.", "pages": 10, "code": "NS-3",
    },
    {
        "city": "Madrid", "kind": "policy", "price_eur": 5000.5, "area_m2": 200, "length_m": 60, "weight_kg": 4,
        "issued": "2021-07-01", "irrigated": False, "author": "García Márquez, G.", "pages": 20, "code": "AQ-12",
    },
    {
        "city": "Málaga", "kind": "text", "price_eur": 10.5, "area_m2": 50, "length_m": 16, "weight_kg": 100,
        "issued": "2023-07-01", "irrigated": False, "author": "Donald Knuth", "pages": 300, "code": "IT",
    },
]  # fmt: skip
PAPERS = [
    {"year": 1958, "kind": "memo", "authors": ["Perlis, A. J.", "Samelson,K."], "keywords": ["text", "sorting"]},
    {"year": 2024, "kind": "paper", "authors": ["Knuth, D. E.", "Pooch, U.W."], "keywords": ["paging"]},
    {"year": 1990, "kind": "letter", "authors": ["Knuth, J.", "Thacher Jr., H. C."], "keywords": ["lists"]},
]


def dictionary(rows):
    return FieldDictionary.build(rows)


def said(understood):
    return [clause.say for clause in understood.clauses]


def selected(understood, rows):
    filters = MetadataFilters(filters=[clause.filter for clause in understood.clauses])
    return [at for at, row in enumerate(rows) if matches(row, filters)]
