"""Words before a full stop that is not, or need not be, the end of a sentence. Data for ``sentences``."""

from __future__ import annotations

from typing import Final

from agentic_retriever.text.stopwords import stopword_languages, stopwords

_TITLES: Final = """
    adm apdo approx aprox arq avda av bros ca capt cf ch cía cmdr cnel col dept depto dipl dir dña dr dra dras dres drs
    ed eds eg ej esp evtl excma excmo ext fdo gen ggf gob gov gral hno hnos hon ie ilma ilmo inkl incl ing lic lt máx
    max mín min mlle mme mr mrs ms mt op pbro ppal pres prof profa prov rep rev sen sgt sig sog sra sras sr sres srta st
    sta ste sto str tel trad tte univ vda vgl viz vs zzgl
    bzw d.h e.g i.e p.ej u.a z.b
    гл им рис см стр т.е т.к ул
"""
_COUNTERS: Final = """
    abs anm apartado apt art arts artt bd cap caps chap eq fig figs kap n no nos nr nro num núm núms p pag pág págs pos
    pp pt s sec secc sect tab vol vols § №
"""
_SUFFIXES: Final = "al co corp cía etc ff inc jr ltd ltda pte pty s.a s.l s.r.l ss u.k u.s uu usw др пр"
_MONTHS: Final = """
    januar februar märz april mai juni juli august september oktober november dezember
    január február március április május június július augusztus szeptember október december
    ledna února března dubna května června července srpna září října listopadu prosince
"""

ALWAYS_FOLLOWED: Final = frozenset(_TITLES.split())
"""Titles and the like: a name or the rest of the sentence follows."""

BEFORE_NUMBER: Final = frozenset(_COUNTERS.split())
"""Not the end of a sentence when a number follows: ``No. 5``, but ``No. I will not.``"""

MAY_END: Final = frozenset(_SUFFIXES.split())
"""The end of a sentence when the next word is one that sentences begin with."""

MONTHS: Final = frozenset(_MONTHS.split())
"""Months of languages that write the day before them with a full stop: ``3. Oktober``."""

STARTERS: Final = frozenset(word for language in stopword_languages() for word in stopwords(language))
"""Words that, with a capital, begin a sentence rather than a name."""
