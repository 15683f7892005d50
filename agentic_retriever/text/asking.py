"""The words of a question that only ask, and say nothing of what it is about."""

from __future__ import annotations

import re
from typing import Final

# Their n-grams would count as content. Words of alphabets need no list here, since the tokenizer drops stop words.
_ASKING: Final = re.compile(
    "คืออะไร|อะไร|เท่าไหร่|เท่าไร|เท่าใด|ที่ไหน|ที่ใด|แห่งใด|ไหน|อย่างไร|ยังไง|เมื่อไหร่|เมื่อไร|เมื่อใด|หรือไม่|หรือเปล่า|ใช่ไหม|ไหม$|(?<!เ)กี่|ใคร|ทำไม"
    "|เพราะเหตุใด|ใดบ้าง|ใด|บ้าง|ครับ|ค่ะ|请问|什么|甚麼|什麼|多少|哪里|哪裡|哪个|哪個|哪些|怎么|怎麼|如何|为什么|為什麼|吗|嗎"
    "|何ですか|ですか|ますか|どこ|いつ|いくら|いくつ|どの|なぜ|だれ|誰|무엇|얼마|언제|어디|누구|어떤|인가요|입니까"
)

# What is said to whom answers, before it is said what about.
_REQUESTS: Final = re.compile(
    r"\b(?:please|(?:tell|give|show|walk|help) (?:me|us)(?: through)?|(?:can|could|would) you|explain|describe"
    r"|summari[sz]e|compare|(?:an? |the )?(?:overview|summary|gist|outline) of|what .{1,12}?\babout"
    r"|i(?:'d| would)? (?:want|need|like) to|i(?: a|')m (?:interested in|looking for)|looking for|do i have to"
    r"|find (?:me )?|list (?:all )?)\b"
    r"|\b(?:por favor|dame|d[ií]me|mu[eé]strame|cu[eé]ntame|expl[ií]ca(?:me)?|descr[ií]be(?:me)?|res[uú]me(?:me)?"
    r"|enum[eé]ra(?:me)?|comp[aá]ra(?:me)?|(?:una |la )?visi[oó]n general de|(?:un |el )?resumen de|de qu[eé] trata"
    r"|quiero|quisiera|necesito|me gustar[ií]a)\b"
    "|ช่วย|หน่อย|กรุณา|สรุป|อธิบาย|เปรียบเทียบ|บอก|อยากได้|อยากรู้|อยากทราบ|ขอภาพรวม",
    re.IGNORECASE,
)


def without_requests(query: str) -> str:
    """Replace the words that only address whom is asked, such as ``give me an overview of``, by spaces.

    Args:
        query: Any text, in English, Spanish or Thai; of other languages nothing is known.

    Returns:
        The query with what it is about.
    """
    return _REQUESTS.sub(" ", query)


def without_asking(query: str) -> str:
    """Replace the words that only ask, such as ``อะไร`` or ``什么``, by spaces.

    Args:
        query: Any text.

    Returns:
        The query with what it is about.
    """
    return _ASKING.sub(" ", query)
