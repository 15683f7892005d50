"""How a true sentence is made false, or written otherwise, for the citation cases."""

from __future__ import annotations

import re

from citation_material import OTHER_NAMES

from agentic_retriever.text.language_files import section

_MONTHS = {code: [names[0] for names in section("dates")[code]["months"].values()] for code in ("en", "es", "th")}
_MONTHS["en"] = [name.capitalize() for name in _MONTHS["en"]]
_EVERY_MONTH = frozenset(month for months in _MONTHS.values() for month in months)


def other_form(sentence: str, language: str) -> str | None:
    """The same with dates, digits or separators written otherwise."""
    changed = iso_date(sentence, language) or sentence
    if language == "th" and changed == sentence:
        return sentence.translate(str.maketrans("0123456789", "๐๑๒๓๔๕๖๗๘๙")) if re.search(r"\d", sentence) else None
    if language != "es":  # where a comma stands before decimals
        changed = re.sub(r"(?<=\d),(?=\d{3}\b)", "\u202f", changed)
    changed = re.sub(r"\bper ?cent\b|\bpor ciento\b", "%", changed)
    changed = (
        re.sub(r"(?<=\d) %", " percent" if language == "en" else " por ciento", changed)
        if (changed == sentence and language != "th")
        else changed
    )
    return changed if changed != sentence else None


def iso_date(sentence: str, language: str) -> str | None:
    months = _MONTHS[language]
    found = re.search(rf"(\d{{1,2}}) (?:de )?({'|'.join(months)}) (?:de )?(\d{{4}})", sentence)
    if not found:
        return None
    year = int(found[3]) - (543 if language == "th" else 0)
    iso = f"{year}-{months.index(found[2]) + 1:02}-{int(found[1]):02}"
    return sentence[: found.start()] + iso + sentence[found.end() :]


def changed_date(sentence: str, language: str) -> str | None:
    """Another month, day or year, in turn."""
    months = _MONTHS[language]
    found = re.search(rf"(\d{{1,2}}) (?:de )?({'|'.join(months)})(?: (?:de )?(\d{{4}}))?", sentence)
    if not found:
        found = re.search(rf"()\b({'|'.join(months)})\b()", sentence)
        if not found or found[2] == "May":
            return None
    turn = len(sentence) % 3
    if turn == 1 and found[1]:
        start, end, new = found.start(1), found.end(1), str(int(found[1]) % 27 + 2)
    elif turn == 2 and found[3]:
        start, end, new = found.start(3), found.end(3), str(int(found[3]) + 3)
    else:
        start, end, new = found.start(2), found.end(2), months[(months.index(found[2]) + 4) % 12]
    return sentence[:start] + new + sentence[end:]


def swapped_name(sentence: str, language: str) -> str | None:
    names = OTHER_NAMES[language]
    name = names[len(sentence) % len(names)]
    if language == "th":
        found = re.search(r"(?:นางสาว|นาง|นาย)([\u0e00-\u0e7f]{3,12}(?: [\u0e00-\u0e7f]{4,})?)", sentence)
        people, places = names[:2], names[2:]
        if found:
            return sentence[: found.start(1)] + people[len(sentence) % 2] + sentence[found.end(1) :]
        found = re.search(r"จังหวัด([\u0e00-\u0e7f]{3,})", sentence)
        new = places[len(sentence) % 3]
        return sentence[: found.start(1)] + new + sentence[found.end(1) :] if found else None
    words = [
        w for w in re.finditer(r"(?<=[a-záéíóúñ,] )[A-ZÁÉ][\wáéíóúñ]+(?:-\d+)?", sentence) if w[0] not in _EVERY_MONTH
    ]
    if not words:
        return None
    word = words[len(sentence) % len(words)]
    code = {"en": "CTO", "es": "ZTO"}[language] if word[0].isupper() else name
    new = re.sub(r"\d+", lambda d: str(int(d[0]) + 6), word[0]) if re.search(r"\d", word[0]) else code
    return sentence[: word.start()] + new + sentence[word.end() :]


def flipped(sentence: str, language: str) -> str | None:
    rules = {
        "en": [(r" (?:must|may|can) (?!not|never|be)", r"\g<0>not "), (r" (is|are) not ", r" \1 "),
               (r" (?:is|are) (?!not|never)", r"\g<0>not "),
               (r" (?:must|may|can)(not)? (not |never )", lambda m: m[0].replace(m[2], "")), (r" never ", " always ")],
        "es": [(r" no ", " "), (r" (?=(?:puede|se|lleva|tiene|es|son|debe|resuelve|conserva)n? )", " no ")],
        "th": [("ไม่(?=ต้อง|ได้|มี|เคย|ใช่|ผูก)", ""),
               ("(?<!ไม่)(?=ต้อง|ได้รับ|มีสิทธิ|มีชื่อ|เป็นของ|เป็นเจ้าของ|ติดถนน)", "ไม่")],
    }[language]  # fmt: skip
    for pattern, new in rules[len(sentence) % 2 :] + rules[: len(sentence) % 2]:
        changed = re.sub(pattern, new, sentence, count=1)
        if changed != sentence:
            return changed
    return None


def changed_number(sentence: str) -> str | None:
    """One of the numbers, the first or the last in turn, made another one of the same form."""
    found = list(re.finditer(r"(?<![\w.,-])\d+(?:[.,]\d+)*(?![\w-])", sentence))
    if not found:
        return None
    number = found[len(sentence) % len(found)]
    digits = number[0]
    first = str(int(digits[0]) % 9 + 1)
    new = first + digits[1:] if len(digits) > 1 else str((int(digits) + 3) % 10 or 4)
    return sentence[: number.start()] + new + sentence[number.end() :]
