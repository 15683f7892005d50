"""Small lists of words that carry grammar and no topic, for the languages whose questions are full of them.

The lists are short on purpose: a rare word wrongly kept costs BM25 little (its weight is its rarity), one wrongly
dropped can never be found. They are written in lower case with accents, and question words are among them.
"""

from __future__ import annotations

from typing import Final

_WORDS: Final[dict[str, str]] = {
    "en": """
        a about after again all also although am an and any are as at be because been before being between both but by
        can could did do does doing don't doesn't didn't isn't aren't wasn't weren't won't can't couldn't wouldn't
        shouldn't haven't hasn't hadn't during each either else few for from further had has have having he her here
        hers herself him himself his how however i i'm i've i'll i'd if in into is it it's its itself just let let's
        may me might more most much must my myself neither no nor not now of off on once only onto or other others
        our ours ourselves out over own per please same shall she should since so some such tell than that that's the
        their theirs them themselves then there there's these they they're this those though through thus to too under
        until up upon very via was we were what what's when where whereas whether which while who whom whose why will
        with within without would yet you your yours yourself
    """,
    "es": """
        a al algo algún alguna algunas alguno algunos ante antes aquel aquella aquellas aquellos aquí así aun aún aunque
        bajo bien cabe cada casi como cómo con contra cual cuál cuales cuáles cualquier cualquiera cuando cuándo cuanto
        cuánta cuántas cuánto cuántos cuya cuyas cuyo cuyos de debe deben debería del desde donde dónde dos durante e el
        él ella ellas ello ellos en entonces entre era eran eres es esa esas ese eso esos esta está están estar estas
        este esto estos estoy fue fueron fui ha había habían haber han has hasta hay he hemos hizo la las le les lo los
        me mi mis mí mientras más muy ni no nos nosotros nuestra nuestras nuestro nuestros o os otra otras otro otros
        para pero poco por porque pues puede pueden que qué quien quién quienes quiénes se sea sean según ser será serán
        si sí sido sin sino sobre solo sólo son soy su sus suya suyo también tampoco tan tanto te tener tengo ti tiene
        tienen toda todas todo todos tras tu tú tus u un una unas uno unos usted ustedes vosotros y ya yo
    """,
    "fr": """
        a afin ai ainsi alors as au aucun aucune aujourd'hui auquel aussi autre autres aux avait avant avec avez avoir
        avons c ça car ce ceci cela celle celles celui ces cet cette ceux chaque chez comme comment d dans de des depuis
        dès deux doit doivent donc dont du elle elles en encore entre es est et étaient était étant été être eux fait il
        ils j je jusqu l la là laquelle le lequel les lesquelles lesquels leur leurs lorsque lui m ma mais me même mêmes
        mes moi moins mon n ne ni non nos notre nous on ont ou où par parce pas pendant peu peut peuvent plus plusieurs
        pour pourquoi puis qu quand que quel quelle quelles quels qui quoi s sa sans se selon sera seront ses si sien
        soit son sont sous suis sur t ta te tes toi ton tous tout toute toutes très tu un une vers voici voilà vos votre
        vous y
    """,
    "de": """
        aber alle allem allen aller alles als also am an andere anderen anderer anderes auch auf aus bei beim bin bis
        bist da dabei dadurch dafür damit dann daran darauf daraus darin darüber das dass davon dazu dein deine dem den
        denen denn der deren des dessen dich die dies diese diesem diesen dieser dieses dir doch dort du durch ein eine
        einem einen einer eines er es etwa etwas euch euer für gegen gibt hab habe haben hat hatte hatten hier hin
        hinter ich ihm ihn ihnen ihr ihre ihrem ihren ihrer im in indem ins ist ja jede jedem jeden jeder jedes jene
        jetzt kann kein keine keinem keinen keiner können könnte man mein meine mich mir mit muss müssen nach nicht
        nichts noch nun nur ob oder ohne sehr sein seine seinem seinen seiner seit sich sie sind so solche soll sollen
        sollte sondern sowie über um und uns unser unsere unter viel viele vom von vor wann war waren warum was weil
        welche welchem welchen welcher welches wem wen wenn wer werde werden wessen wie wieder will wir wird wo wohin
        wurde wurden zu zum zur zwar zwischen
    """,
    "it": """
        a abbiamo ad agli ai al alla alle allo altra altre altri altro anche ancora c che chi ci ciò coi col come con
        contro cosa così cui d da dagli dai dal dalla dalle dallo degli dei del della delle dello dentro di dopo dove e
        è ed era erano essere fa fino fra fu furono gli ha hai hanno ho i il in invece io l la le lei li lo loro lui ma
        me mentre mi mia mie miei mio molto ne negli nei nel nella nelle nello no noi non nostra nostro o ogni oppure
        per perché perciò però più poi può possono qual quale quali qualche quando quanta quante quanti quanto quella
        quelle quelli quello questa queste questi questo qui quindi se sei senza si sia siamo siano sono sopra sotto sta
        stata stati stato su sua sue sugli sui sul sulla sulle sullo suo suoi te ti tra tu tua tue tuo tuoi tutta tutte
        tutti tutto un una uno v vi voi
    """,
    "pt": """
        a à ainda algo algum alguma algumas alguns ante antes ao aos após aquela aquelas aquele aqueles aquilo as às
        assim até cada com como contra cujo cuja da das de dela delas dele deles depois desde dessa dessas desse desses
        desta destas deste destes deve devem do dos durante e é ela elas ele eles em enquanto então entre era eram essa
        essas esse esses esta está estão estas estava este estes eu foi foram há isso isto já la lhe lhes lo mais mas me
        mesma mesmo meu meus minha minhas muito na não nas nem nessa nesse nesta neste no nos nós nossa nosso num numa o
        onde ora os ou outra outras outro outros para pela pelas pelo pelos per pode podem pois por porque porquê qual
        quais qualquer quando quanta quantas quanto quantos que quê quem são se seja sem sendo ser será serão seu seus
        si sido só sob sobre sua suas também tão te tem têm tendo ter teu teus todas todo todos tu tua tudo um uma umas
        uns você vocês
    """,
}

_SETS: Final = {language: frozenset(words.split()) for language, words in _WORDS.items()}
_NONE: Final[frozenset[str]] = frozenset()


def stopwords(language: str) -> frozenset[str]:
    """Give the stop words of a language.

    Args:
        language: ISO 639-1 code, in lower case.

    Returns:
        Lower-case words with their accents; empty for a language without a list, such as Thai, and for ``"und"``.
    """
    return _SETS.get(language, _NONE)


def stopword_languages() -> frozenset[str]:
    """Give the languages that have stop words.

    Returns:
        ISO 639-1 codes.
    """
    return frozenset(_SETS)
