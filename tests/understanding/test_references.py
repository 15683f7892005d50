import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic_retriever.indices.derived import Outline
from agentic_retriever.text.references import MAX_REFERENCES, Reference, find_references
from agentic_retriever.understanding.references import ReferenceMap


def found(text):
    return [(r.kind[0], r.number, r.target) for r in find_references(text)]


@pytest.mark.parametrize(("text", "expected"), [
    ("see section 4.2 for more", [("s", "4.2", "")]),
    ("in sections 3, 5 and 7.1.", [("s", "3", ""), ("s", "5", ""), ("s", "7.1", "")]),
    ("section 2.1 of the procurement policy, so", [("s", "2.1", "the procurement policy")]),
    ("Articles 6–8 apply", [("a", "6", ""), ("a", "7", ""), ("a", "8", "")]),
    ("según el artículo 17, que", [("a", "17", "")]),
    ("artículo 4 bis y artículos 10 a 12.", [("a", n, "") for n in ("4 bis", "10", "11", "12")]),
    (
        "apartado 6.2.1 del Anexo III y el artículo 9)",
        [("s", "6.2.1", "Anexo III y el artículo 9"), ("a", "9", "")],
    ),
    ("ตามมาตรา ๑๒ วรรคสอง", [("a", "12", "")]), ("ดูหัวข้อ 2 และข้อ 3.2", [("s", "2", ""), ("s", "3.2", "")]),
    ("§ 12", [("s", "12", "")]), ("Artikel 5 und Abschnitt 4.1", [("a", "5", ""), ("s", "4.1", "")]),
    ("the section on wheels; 4.2 litres; crossection 5; ข้อมูล 5", []),
])  # fmt: skip
def test_references_are_found(text, expected):
    assert found(text) == expected


def test_wide_ranges_and_long_lists_are_bounded():
    assert len(find_references("sections 1 to 9000")) <= 12
    assert len(find_references(" ".join(f"section {i}." for i in range(500)))) == MAX_REFERENCES


@given(st.text(alphabet="section artículo มาตรา123.,-–yato§ของdel \n", max_size=300))
def test_any_text_is_read_in_time(text):
    for reference in find_references(text):
        assert reference.number[0].isalnum()


@pytest.fixture
def references():
    def outline(title, sections=(), articles=()):
        return Outline(
            title=title,
            sections={n: [f"{title[:8]}/{n}"] for n in sections},
            articles={n: [f"{title[:8]}/art{n}"] for n in articles},
        )

    return ReferenceMap(
        {
            "anexo3": outline("Anexo III. Alumbrado", ["6", "6.2", "6.2.1", "9.1", "9.2"]),
            "anexo4": outline("Anexo IV. Frenado", ["6.2", "7"]),
            "reg1": outline("Reglamento General. Título primero", articles=["1", "10"]),
            "reg2": outline("Reglamento General. Título segundo", articles=["17"]),
            "policy": outline("Procurement and Approvals Policy", ["2.1"]),
            "travel": outline("Travel and Expenses Policy", ["2.1"], ["10"]),
        }
    )


@pytest.mark.parametrize(
    ("kind", "number", "target", "where", "expected"),
    [
        ("section", "6.2.1", "", "anexo3", ["Anexo II/6.2.1"]),
        ("section", "6.2", "Anexo III", "anexo4", ["Anexo II/6.2"]),
        ("section", "6.2", "", "anexo4", ["Anexo IV/6.2"]),
        ("section", "6.2.7", "Anexo III", "policy", ["Anexo II/6.2"]),
        ("section", "9", "", "anexo3", ["Anexo II/9.1", "Anexo II/9.2"]),
        ("section", "2.1", "the procurement policy", "anexo3", ["Procurem/2.1"]),
        ("section", "2.1", "this policy", "travel", ["Travel a/2.1"]),
        ("section", "2.1", "the plan", "travel", ["Travel a/2.1"]),
        ("section", "2.1", "Ley 39/2015", "travel", []),
        ("section", "99", "", "anexo3", []),
        ("section", "6.2", "", "not there", []),
        ("article", "17", "", "anexo3", ["Reglamen/art17"]),
        ("article", "17", "Reglamento General", "anexo3", ["Reglamen/art17"]),
        ("article", "10", "", "anexo3", []),  # two documents have one
        ("article", "10", "", "travel", ["Travel a/art10"]),
        ("article", "10", "Reglamento General", "travel", ["Reglamen/art10"]),
        ("article", "10", "Código Civil", "travel", []),
        ("article", "17.2", "Reglamento General", "anexo3", ["Reglamen/art17"]),
    ],
)
def test_references_are_resolved(references, kind, number, target, where, expected):
    assert list(references.resolve(Reference(kind=kind, number=number, target=target), where)) == expected
