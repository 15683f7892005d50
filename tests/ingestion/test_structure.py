import pytest
from waiting import within

from agentic_retriever.ingestion.structure import scan_blocks, split_sections

BODY = "Texto de la sección, con varias palabras.\n"


def outline(text):
    """Return path, section number and article of every section."""
    return [
        (" > ".join(heading.title for heading in section.path), section.number, section.article)
        for section in split_sections(text)
    ]


@pytest.mark.parametrize(("line", "path", "number", "article"), [
    ("# Title", "Title", "", ""), ("### Deep ###", "Deep", "", ""), ("  # Indented", "Indented", "", ""),
    ("## **Bold** and [link](http://x.y)", "Bold and link", "", ""),
    ("## 6.2.1. Presencia", "6.2.1. Presencia", "6.2.1", ""), ("## 3. Scope", "3. Scope", "3", ""),
    ("## 3 ways to save", "3 ways to save", "", ""), ("## Artículo 42. Objeto", "Artículo 42. Objeto", "", "42"),
    ("Title\n=====", "Title", "", ""), ("Part two\n---", "Part two", "", ""),
    ("6.2.1. Presencia", "6.2.1. Presencia", "6.2.1", ""), ("1.2 Scope", "1.2 Scope", "1.2", ""),
    ("A.1 Measurements", "A.1 Measurements", "A.1", ""), ("CAPÍTULO III", "CAPÍTULO III", "", ""),
    ("Capítulo III. Disposiciones generales", "Capítulo III. Disposiciones generales", "", ""),
    ("CAPÍTULO III\nDisposiciones generales\n", "CAPÍTULO III. Disposiciones generales", "", ""),
    ("Article 7\nSubject matter\n", "Article 7. Subject matter", "", "7"), ("Article 7", "Article 7", "", "7"),
    ("Article 7 Scope of application", "Article 7 Scope of application", "", "7"),
    ("Article IV.", "Article IV", "", "IV"), ("Artículo 42. Objeto", "Artículo 42. Objeto", "", "42"),
    ("ARTÍCULO 4 bis.- Plazos", "ARTÍCULO 4 bis.- Plazos", "", "4 bis"), ("Art. 5", "Art. 5", "", "5"),
    ("Art. 5º Prazo", "Art. 5º Prazo", "", "5"), ("มาตรา 12", "มาตรา 12", "", "12"),
    ("มาตรา ๑๒", "มาตรา ๑๒", "", "12"), ("หมวด ๒ บททั่วไป", "หมวด ๒ บททั่วไป", "", ""),
    ("Annex II", "Annex II", "", "")
])  # fmt: skip
def test_a_heading_on_its_own_line(line, path, number, article):
    assert outline(f"{line}\n\n{BODY}") == [(path, number, article)]


@pytest.mark.parametrize(
    ("line", "path", "article"),
    [
        ("Artículo 42. Los vehículos deben llevar luces de cruce en todo momento y lugar.", "Artículo 42", "42"),
        ("Artículo 42. Objeto. Esta ley regula la homologación de los vehículos.", "Artículo 42. Objeto", "42"),
        ("Artículo 42.- El plazo será de diez días.", "Artículo 42", "42"),
        ("Artículo 42. Queda prohibido fumar.", "Artículo 42", "42"),
        ("Art. 5. El plazo será de diez días desde la notificación al interesado.", "Art. 5", "5"),
        ("Article 7. Member States shall take the measures needed to comply with this.", "Article 7", "7"),
        ("มาตรา ๑๒ ผู้ใดมีสิทธิครอบครองที่ดินให้แจ้งต่อพนักงานเจ้าหน้าที่", "มาตรา ๑๒", "12"),
    ],
)
def test_an_article_whose_text_begins_on_its_line(line, path, article):
    assert outline(f"{line}\n") == [(path, "", article)]


@pytest.mark.parametrize("text", [
    "1. Buy milk\n2. Buy eggs\n3. Go home\n", "1. Buy milk\n\n2. Buy eggs\n\n3. Go home\n",
    "1. Buy milk\n\n   The whole kind, not the thin one.\n\n2. Buy eggs\n",
    "Some text.\n\n4. Lonely point\n\nText below it.\n", "3.5 kg of flour and two eggs\n\nMix them.\n",
    "1.2 million people came.\n", "The scope is described in\n3.2 Scope and\nelsewhere.\n",
    "As was laid down in\nArticle 7 of the treaty, nothing changes.\n", "Article 7 of the treaty says nothing.\n",
    "Artículo 42 del reglamento y otros.\n", "ตามประมวลกฎหมาย\n\nมาตรา 12 แห่งพระราชบัญญัติ\n",
    "Part of the text\n\nand more\n", "Section I think is wrong.\n", "#hashtag is no heading\n", "#\n",
    "Título III Disposiciones\nque siguen a estas.\n", "Name    Mode    Type\n======\na\n", "    # indented code\n",
    "10.12.2024 Meeting with the board, who came late\nand left early.\n",
    "```\n# a comment in code\n1.2 Scope\n```\n", "- item\n---\n", "---\n",
    "- 1.2 Faster\n\n  Text.\n\n- 1.3 Smaller\n\n  Text.\n", "- 1. One\n\n  Text.\n\n- 2. Two\n\n  Text.\n",
    "- 5.1. Las luces de un mismo par se montan juntas.\n- 5.2. Ninguna luz puede verse desde detrás.\n",
    "- 1.1. Alcance\n- 1.2. Luces\n- 1.3. Frenos\n- 1.4. Ruido\n\nTexto.\n"
])  # fmt: skip
def test_what_only_looks_like_a_heading(text):
    assert [path for path, _, _ in outline(text)] == [""]


@pytest.mark.parametrize(("text", "expected"), [
    pytest.param(
        "6.2.1. Presencia. Obligatoria en los vehículos de motor.\n6.2.2. Número. Dos o cuatro luces.\n",
        [("6.2.1. Presencia", "6.2.1", ""), ("6.2.2. Número", "6.2.2", "")],
        id="a numbered section whose text begins on its line",
    ),
    pytest.param("".join(f"{n}.1. About a thing\n" for n in range(1, 9)) + BODY, [("", "", "")], id="contents"),
    pytest.param("1.1 Scope ........ 4\n\nText.\n", [("", "", "")], id="dot leaders mark a contents line"),
    pytest.param(
        f"1. Introduction\n\n{BODY}\n2. Methods\n\n{BODY}\n",
        [("1. Introduction", "1", ""), ("2. Methods", "2", "")],
        id="single numbers are sections when they are a series with text",
    ),
    pytest.param(
        f"6. Luces\n\n{BODY}\n6.1. Cruce\n\n{BODY}\n",
        [("6. Luces", "6", ""), ("6. Luces > 6.1. Cruce", "6.1", "")],
        id="single numbers are sections when numbered ones stand below them",
    ),
    pytest.param(f"# Guide\n\n1. One\n\n{BODY}\n2. Two\n\n{BODY}\n", [("Guide", "", "")], id="list items below #"),
    pytest.param(
        f"# Guide\n\n{BODY}\n1. One\n\n{BODY}\n2. Two\n\n{BODY}\n3. Three\n\n{BODY}\n",
        [("Guide", "", ""), *((f"Guide > {n}. {t}", str(n), "") for n, t in enumerate(("One", "Two", "Three"), 1))],
        id="a series below the title alone divides the document",
    ),
    pytest.param(
        f"# Guide\n\n## Steps\n\n1. One\n\n{BODY}\n2. Two\n\n{BODY}\n3. Three\n\n{BODY}\n",
        [("Guide > Steps", "", "")],
        id="a series below a further heading is a list",
    ),
    pytest.param(
        f"# Anexo\n\n## 5. Otras\n\n{BODY}\n6. Luces\n\n{BODY}\n## 7. Frenos\n\n{BODY}\n8. Fin\n\n{BODY}",
        [("Anexo > 5. Otras", "5", ""), ("Anexo > 6. Luces", "6", ""), ("Anexo > 7. Frenos", "7", "")],
        id="a single number fills the gap between markdown headings, and does not go on behind them",
    ),
    pytest.param(
        f"# Anexo\n\n6. Luces\n\n{BODY}\n- 6.2. Luces de cruce\n- 6.2.1. Presencia\n  Obligatoria\n"
        "- 6.2.2. Número\n  Dos.\n\n- 6.3 Freno\n\n  Dos o tres.\n",
        [("Anexo > 6. Luces", "6", ""),
         ("Anexo > 6. Luces > 6.2. Luces de cruce > 6.2.1. Presencia", "6.2.1", ""),
         ("Anexo > 6. Luces > 6.2. Luces de cruce > 6.2.2. Número", "6.2.2", ""),
         ("Anexo > 6. Luces > 6.3 Freno", "6.3", "")],
        id="numbered items of a list with text below them are sections",
    ),
    pytest.param(
        f"**6.2. Luz de cruce**\n\n{BODY}\n**6.2.1. Número**\n\n{BODY}\n- **6.2.2. Borde**: el exterior.\n",
        [("6.2. Luz de cruce", "6.2", ""), ("6.2. Luz de cruce > 6.2.1. Número", "6.2.1", "")],
        id="a numbered heading may be a line in bold",
    ),
    pytest.param(
        f"## 6. Luces\n\n{BODY}\n## 6.2. Cruce\n\n{BODY}\n6.2.1. Presencia\n\n{BODY}\n### 6.2.2\n\n{BODY}\n"
        f"6.3. Freno\n\n{BODY}\n## 7. Fin\n\n{BODY}",
        [("6. Luces", "6", ""), ("6. Luces > 6.2. Cruce", "6.2", ""),
         ("6. Luces > 6.2. Cruce > 6.2.1. Presencia", "6.2.1", ""),
         ("6. Luces > 6.2. Cruce > 6.2.2", "6.2.2", ""), ("6. Luces > 6.3. Freno", "6.3", ""),
         ("7. Fin", "7", "")],
        id="numbers nest where markdown levels do not, and in a mix of both",
    ),
    pytest.param(
        f"## TÍTULO I\n\n{BODY}\n## Capítulo II\n\n{BODY}\n## Artículo 1. Objeto\n\n{BODY}\n## Anexo I\n\n{BODY}",
        [("TÍTULO I", "", ""), ("TÍTULO I > Capítulo II", "", ""),
         ("TÍTULO I > Capítulo II > Artículo 1. Objeto", "", "1"), ("Anexo I", "", "")],
        id="divisions nest by kind where markdown levels do not",
    ),
    pytest.param(
        f"# Article I\n\n{BODY}\n## Section 1\n\n{BODY}",
        [("Article I", "", "I"), ("Article I > Section 1", "", "I")],
        id="markdown levels that differ say more than the kind",
    ),
    pytest.param(
        f"6.2 Luz de cruce\n\n{BODY}\n3.5 Kilos de harina\n\n{BODY}\n6.3 Luz de freno\n\n{BODY}",
        [("6.2 Luz de cruce", "6.2", ""), ("6.3 Luz de freno", "6.3", "")],
        id="numbers that run backwards are no sections",
    ),
    pytest.param(
        f"1.2 Alcance\n\n{BODY}\n1.80 Metros de altura\n\n{BODY}\n1.3 Límites\n\n{BODY}",
        [("1.2 Alcance", "1.2", ""), ("1.3 Límites", "1.3", "")],
        id="numbers that leap are no sections",
    ),
    pytest.param(
        f"6.2 Luz de cruce\n\n{BODY}\n1.1 Anexo\n\n{BODY}",
        [("6.2 Luz de cruce", "6.2", ""), ("1.1 Anexo", "1.1", "")],
        id="the numbering may begin again",
    ),
    pytest.param(
        f"TÍTULO I\n\n{BODY}\nCapítulo II\n\n{BODY}\nArtículo 1. Objeto\n\n{BODY}\nCapítulo III\n\n{BODY}",
        [("TÍTULO I", "", ""), ("TÍTULO I > Capítulo II", "", ""),
         ("TÍTULO I > Capítulo II > Artículo 1. Objeto", "", "1"), ("TÍTULO I > Capítulo III", "", "")],
        id="levels nest by kind",
    ),
    pytest.param(
        f"# Annex\n\n{BODY}\n6.1 Lights\n\n{BODY}\n6.1.2 Number\n\n{BODY}",
        [("Annex", "", ""), ("Annex > 6.1 Lights", "6.1", ""), ("Annex > 6.1 Lights > 6.1.2 Number", "6.1.2", "")],
        id="numbered sections nest below markdown headings",
    ),
    pytest.param(
        f"# A\n\n```\ncode\n\n# B\n\n{BODY}",
        [("A", "", ""), ("B", "", "")],
        id="an unclosed fence does not swallow the document",
    ),
])  # fmt: skip
def test_headings_judged_by_the_document_they_stand_in(text, expected):
    assert outline(text) == expected


def test_headings_without_text_join_the_section_below_and_a_line_taken_back_its_paragraph():
    sections = split_sections(f"# A\n\n## B\n\n### C\n\n{BODY}\n## D\n\n{BODY}")
    found = [(len(section.path), [block.kind for block in section.blocks]) for section in sections]
    assert found == [(3, ["heading", "heading", "heading", "text"]), (2, ["heading", "text"])]
    text = "6.2 Luz de cruce\n\nSe añaden los ingredientes.\n3.5 Kilos de harina\nY sal.\n"
    (section,) = split_sections(text)
    assert [text[block.start : block.end].count("\n") for block in section.blocks] == [0, 2]


def test_text_from_a_pdf_has_no_markdown_and_articles_that_run_on_without_blank_lines():
    text = (
        "Artículo 7. Queda prohibido aparcar en la vía pública durante la noche.\n"
        "Sigue el texto del artículo.\n"
        "Artículo 8. Las multas se pagan en diez días desde la notificación.\n"
        "Lo dispuesto no afecta a lo que dice el reglamento.\n"
        "Artículo 3. Es una cita, no un artículo, y el texto sigue.\n"
    )
    assert [article for _, _, article in outline(text)] == ["7", "8"]


@pytest.mark.parametrize(
    "line", ["[" * 100_000, "# " + " " * 100_000 + "x", "|" * 100_000, "1." * 50_000, " -" * 50_000]
)
def test_hostile_lines_take_linear_time(line):
    with within(2):
        split_sections(f"a | b\n{line}\n\n{line}\n")


@pytest.mark.parametrize(("text", "expected"), [
    ("", []), (" \n\t\n", []), ("one\ntwo\n\nthree", ["text", "text"]),
    ("| a | b |\n|---|---|\n| 1 | 2 |\n", ["table"]), ("a | b\n--- | ---\n1 | 2\n\nend", ["table", "text"]),
    ("Intro:\n| a | b |\n| 1 | 2 |\nAfter", ["text", "table", "text"]), ("this | that\nis prose", ["text"]),
    ("```python\nx = 1\n\ny = 2\n```\nafter", ["code", "text"]), ("~~~\n```\n~~~", ["code"]),
    ("````\n```\n````", ["code"]), ("Quedan excluidos:\n- a\n- b\n", ["text", "list"]),
    ("1. one\n2. two\n   still two\n", ["list"]), ("# A\ntext\n## B\n", ["heading", "text", "heading"])
])  # fmt: skip
def test_kinds(text, expected):
    assert [block.kind for block in scan_blocks(text)] == expected


def test_spans_are_trimmed_and_start_where_asked():
    text = "skipped\n\n   indented  \n\nlast\n"
    assert [text[block.start : block.end] for block in scan_blocks(text, start=9)] == ["indented", "last"]
