import pytest

from agentic_retriever.text.numbers import (
    Moment,
    add_up,
    find_dates,
    find_numbers,
    number_words,
    numbers_in,
    read_figures,
    read_number,
)


@pytest.mark.parametrize(("text", "numbers"), [
    ("1,250.50 and 1.250,50", {"1250.5"}), ("๑๒ ไร่", {"12"}), ("12,5 %", {"12.5"}),
    ("in 2024 120 units", {"2024", "120"}), ("10\u202f000 km", {"10000"}), ("FY2024, NS-3", {"2024", "3"}),
    ("none", set()),
])  # fmt: skip
def test_numbers_in_one_form(text, numbers):
    assert numbers_in(text) == numbers


@pytest.mark.parametrize(("text", "value", "percent"), [
    ("twenty-five rai", "25", False), ("treinta y un días", "31", False), ("ยี่สิบเอ็ดไร่", "21", False),
    ("3,5 mil millones", "3500000000", False), ("5 Milliarden", "5000000000", False),
    ("3億円", "300000000", False), ("ร้อยละ 12", "12", True), ("12,5 por ciento", "12.5", True),
])  # fmt: skip
def test_words_scales_and_percentages(text, value, percent):
    (number,) = find_numbers(text)
    assert (number.scaled, number.percent) == (value, percent)


@pytest.mark.parametrize("text", ["ห้ามเข้า", "สามารถ", "por ciento", "none of them"])
def test_words_that_only_look_like_numbers(text):
    assert find_numbers(text) == []


@pytest.mark.parametrize(
    "text", ["2021-03-04", "4 March 2021", "4 de marzo de 2021", "4 มี.ค. 2564", "4. März 2021", "4 марта 2021 г."]
)
def test_a_date_is_the_same_in_every_form(text):
    (date,) = find_dates(text)
    assert date.readings == ((2021, 3, 4),)


def test_one_list_of_number_words_serves_texts_and_questions():
    assert number_words("en")["twenty-one"] == number_words("es")["veintiuno"] == number_words("th")["ยี่สิบเอ็ด"] == 21
    for language in ("en", "es", "th"):
        for word, value in number_words(language).items():
            if value >= 1:
                assert str(int(value)) in {n.value for n in find_numbers(word)} or word == "a dozen", word


@pytest.mark.parametrize(("text", "decimal", "number"), [
    ("1.234", ".", 1.234), ("1.234", ",", 1234.0), ("1,5", ".", 1.5), ("1.234.567", ".", 1234567.0),
    ("1.2.3", ".", None),
])  # fmt: skip
def test_figures_of_a_question_have_the_decimal_sign_of_its_language(text, decimal, number):
    assert read_number(text, decimal) == number


@pytest.mark.parametrize(("text", "languages", "things"), [
    ("5-10", ["en"], [("N", 5.0), ("T", None), ("N", 10.0)]), ("2020", ["en"], [("4", 2020.0)]),
    ("2021-03-04", ["en"], [("D", Moment(2021, 3, 4))]), ("3/4/2021", ["es", "th"], [("D", Moment(2021, 4, 3))]),
    ("3/4/2021", ["en", "th"], [("W", None)]), ("13/4/2021", ["en"], [("D", Moment(2021, 4, 13))]),
])  # fmt: skip
def test_what_a_run_of_figures_is(text, languages, things):
    assert [(symbol, value) for symbol, _, _, value in read_figures(text, ".", languages)] == things


def test_amounts_add_up_within_one_dimension_from_the_greatest_unit_down():
    amount = add_up([(5, "rai"), (2, "ngan")])
    assert amount is not None
    assert (amount.base, amount.dimension) == (8_800, "area")
    assert add_up([(2, "ngan"), (5, "rai")]) is None
    assert add_up([(5, "rai"), (2, "kg")]) is None
