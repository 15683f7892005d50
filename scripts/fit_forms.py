"""Fit what tells the form of a question from its vector, for languages without words of their own.

Usage: python scripts/fit_forms.py

Prototype questions in three languages ask for the same topics, so that a topic speaks for no form: what is left is the
form, which a multilingual model puts in the same direction in every language. Ridge regression, each form counting the
same. Written: ``routing/question_forms.json``; printed: how each language fares when only the others were fitted on.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import numpy as np

import agentic_retriever
from agentic_retriever.config import RouterConfig
from agentic_retriever.embeddings import embedding_name, resolve_embedding

FORMS: Final = ("overview", "documents", "other")
RIDGE, THRESHOLD = 1.0, 0.3
PROTOTYPES: Final = {
    "en": {
        "overview": [
            "Summarise {}",
            "Give me an overview of {}.",
            "The main points of {}, please",
            "Everything there is on {} in brief",
            "What is {} about, in a nutshell?",
            "Explain the whole of {}",
        ],
        "documents": [
            "Which documents discuss {}?",
            "Which file is about {}?",
            "Where can I read about {}?",
            "Is there a document on {}?",
            "What papers deal with {}?",
            "In which texts is {} mentioned?",
        ],
        "other": [
            "What does the text say about {}?",
            "{}",
            "How do I get {}?",
            "When does {} apply?",
            "What does {} mean?",
            "How much is {}?",
            "Who is responsible for {}?",
            "Why is {} needed?",
            "Is {} allowed?",
            "In what year was {} introduced?",
            "Where is {}?",
            "Where is {} mentioned?",
            "Tell me about {}",
            "What is known about {}?",
            "{}: what does it say?",
        ],
    },
    "es": {
        "overview": [
            "Resume {}",
            "Dame una visión general de {}.",
            "Los puntos principales de {}",
            "¿Qué hay en total sobre {}?",
            "En pocas palabras, ¿de qué trata {}?",
            "Explícame todo sobre {}",
        ],
        "documents": [
            "¿Qué documentos tratan de {}?",
            "¿Qué archivo habla de {}?",
            "¿Dónde puedo leer sobre {}?",
            "¿Hay algún documento sobre {}?",
            "¿En qué textos se menciona {}?",
            "Busco los informes que abordan {}",
        ],
        "other": [
            "¿Qué dice el texto sobre {}?",
            "{}",
            "¿Cómo consigo {}?",
            "¿Cuándo se aplica {}?",
            "¿Qué significa {}?",
            "¿Cuánto cuesta {}?",
            "¿Quién se encarga de {}?",
            "¿Por qué hace falta {}?",
            "¿Está permitido {}?",
            "¿En qué año se introdujo {}?",
            "¿Dónde está {}?",
            "¿Dónde se menciona {}?",
            "Háblame de {}",
            "¿Qué se sabe de {}?",
            "{}: ¿qué dice?",
        ],
    },
    "th": {
        "overview": [
            "สรุป{}",
            "ขอภาพรวมของ{}",
            "ประเด็นสำคัญของ{}",
            "{}มีอะไรบ้างทั้งหมด",
            "อธิบาย{}ทั้งหมดโดยย่อ",
        ],
        "documents": [
            "เอกสารใดกล่าวถึง{}",
            "ไฟล์ไหนพูดถึง{}",
            "อ่านเรื่อง{}ได้ที่ไหน",
            "มีเอกสารเรื่อง{}ไหม",
            "คู่มือเล่มไหนเกี่ยวกับ{}",
        ],
        "other": [
            "เอกสารกล่าวถึง{}ว่าอย่างไร",
            "{}",
            "จะขอ{}ได้อย่างไร",
            "{}ใช้เมื่อไร",
            "{}หมายความว่าอะไร",
            "{}ราคาเท่าไร",
            "ใครรับผิดชอบ{}",
            "ทำไมต้องมี{}",
            "{}ทำได้ไหม",
            "เล่าเรื่อง{}ให้ฟัง",
            "{}อยู่ที่ไหน",
            "{}คืออะไร",
        ],
    },
}
TOPICS: Final = [
    "parental leave",
    "payment terms",
    "the fee table",
    "travel expenses",
    "battery exchange",
    "la homologación de tipo",
    "los neumáticos",
    "las sanciones",
    "el registro",
    "ค่าธรรมเนียม",
    "เอกสารสิทธิ์",
    "การแปลงหน่วย",
    "forest management",
    "how to install a kernel",
    "the water cycle",
    "las pymes",
    "ประวัติศาสตร์ไทย",
    "error codes",
    "Service levels",
    "Errores frecuentes",
]


def fit(vectors: np.ndarray, forms: np.ndarray) -> np.ndarray:
    """Return a row of weights for each form but the last, against the last; the first weight is the intercept."""
    mean, weight = vectors.mean(axis=0), 1 / np.bincount(forms)[forms]
    weight = (weight / weight.mean())[:, None]
    wanted = np.eye(len(FORMS))[forms]
    middle = (wanted * weight).sum(axis=0) / weight.sum()
    centred = vectors - mean
    left = (centred * weight).T @ centred + RIDGE * np.eye(vectors.shape[1])
    weights = np.linalg.solve(left, (centred * weight).T @ (wanted - middle))
    rows = np.column_stack([middle - mean @ weights, weights.T])
    return rows[:-1] - rows[-1]


def main() -> None:
    """Fit, print and write."""
    model = resolve_embedding(RouterConfig(embedding_model="local"))
    asked = [
        (language, FORMS.index(form), template.format(topic))
        for language, by_form in PROTOTYPES.items()
        for form, templates in by_form.items()
        for template in templates
        for topic in TOPICS
    ]
    vectors = np.array([model.get_query_embedding(text) for _, _, text in asked])
    forms, languages = np.array([form for _, form, _ in asked]), np.array([language for language, _, _ in asked])
    for language in PROTOTYPES:
        held = languages == language
        rows = fit(vectors[~held], forms[~held])
        scores = rows[:, 0] + vectors[held] @ rows[:, 1:].T
        told = np.where(scores.max(axis=1) > THRESHOLD, scores.argmax(axis=1), len(FORMS) - 1)
        shares = {form: float((told[forms[held] == at] == at).mean()) for at, form in enumerate(FORMS)}
        print(language, {form: round(share, 3) for form, share in shares.items()})  # noqa: T201
    rows = fit(vectors, forms)
    table = {
        "embedding": embedding_name(model),
        "threshold": THRESHOLD,
        "forms": {form: [round(float(w), 4) for w in row] for form, row in zip(FORMS, rows, strict=False)},
    }
    place = Path(agentic_retriever.__file__).parent / "routing" / "question_forms.json"
    place.write_text(json.dumps(table) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
