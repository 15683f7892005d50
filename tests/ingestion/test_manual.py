import gzip
import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic_retriever.ingestion import BoundedReader, SkippedSource
from agentic_retriever.ingestion.manual import manual_to_text

MAN = r"""'\" t
.\" A comment.
.de Sp
.if t .sp .5v
..
.ie \n(.g .ds Aq \(aq
.el       .ds Aq '
.if t \{\
hidden on a terminal
.\}
.ds Os Linux
.TH LAMP 8 "May 2024"
.SH NAME
lamp \- switch a lamp
.SH
EXIT STATUS
Zero, if \fBlamp\fP(8) did what it
.I should
do on \*(Os, don\*(Aqt
.BR ask ( 1 )
.br
why.\" not shown
.if n Shown.
.SS "Two words"
.TP
.B \-t
.TQ
.BI \-\-time= seconds
Wait; the default is 5\ seconds.
.TP
\(bu
A point.
.IP 1. 4
First.
.IP "\fIname\fR" 4
What it is called.
.nf
  # as it is
    \e
.fi
See
.UR https://lamp.example
the page
.UE .
.TS
tab(@);
lB lB
l l.
Code@Means
_
1@T{
.PP
no
lamp
T}
2@a|b
.TE
.SH AUTHOR
J\[:u]rgen \[u00C9]mile
"""
TEXT = r"""# NAME

lamp - switch a lamp

# EXIT STATUS

Zero, if lamp(8) did what it should do on Linux, don't ask(1)
why. Shown.

## Two words

###### -t, --time=seconds

Wait; the default is 5 seconds.

- A point.

1. First.

###### name

What it is called.

```
  # as it is
    \
```

See the page <https://lamp.example>.

| Code | Means |
| --- | --- |
| 1 | no lamp |
| 2 | a\|b |

# AUTHOR

Jürgen Émile"""
MDOC = """.Dd May 1, 2024
.Dt LAMP 8
.Os
.Sh NAME
.Nm lamp
.Nd switch a lamp
.Sh SYNOPSIS
.Nm
.Op Fl t Ar seconds
.Sh DESCRIPTION
Waits
.Pq see Xr sleep 1 ,
or not
.Po no
.Pc .
.Bl -tag -width Ds
.It Fl t Ar seconds
Time.
.It Ev LAMP
Colour.
.El
.Bl -bullet
.It
One.
.El
.Bl -column a b
.It a Ta b
.El
.Bd -literal
a  b
.Ed
"""
MDOC_TEXT = """# NAME

lamp - switch a lamp

# SYNOPSIS

lamp [-t seconds]

# DESCRIPTION

Waits (see sleep(1)), or not (no).

###### -t seconds

Time.

###### LAMP

Colour.

- One.

a | b

```
a  b
```"""


@pytest.mark.parametrize(("source", "text"), [(MAN, TEXT), (MDOC, MDOC_TEXT)])
def test_a_manual_page_is_read_as_a_terminal_shows_it(read_one, source, text):
    doc = read_one("lamp.8", source)
    assert doc.text == text
    assert (doc.title, doc.kind) == ("lamp - switch a lamp", "man")


WORDS = st.lists(st.from_regex(r"[a-z]{2,9}", fullmatch=True), min_size=1, max_size=4).map(" ".join)
LINES = st.sampled_from(
    ["{}", ".B {}", ".SH\n{}", ".SS {}", ".TP\n{}\n{}", ".IP - 2\n{}", ".PP\n{}", ".nf\n{}\n.fi", ".RS 4\n{}"]
)


def test_what_a_macro_of_the_page_is_given_is_said():
    page = ".de q\n\\\\$3\\*(lq\\\\$1\\*(rq\\\\$2\n..\n.SH FORMAT\nIt begins with\n.q TZif\nand goes on\n.r lost\n"
    assert manual_to_text(page)[1].endswith("It begins with TZif and goes on")


def test_lines_are_put_together_as_their_script_is_written():
    assert manual_to_text(".SH A\n日本語を\n読む 人\n한국\n어\n")[1] == "# A\n\n日本語を読む 人 한국 어"


@given(st.lists(st.tuples(LINES, WORDS)))
def test_no_word_of_a_page_is_lost_or_moved(lines):
    source = "\n".join(line.replace("{}", words) for line, words in lines)
    shown = [word for line, words in lines for word in (words.split() * line.count("{}"))]
    assert re.findall("[a-z]+", manual_to_text(source)[1]) == shown


PIECES = st.sampled_from([*"\\\"'.()[]*ab \n", ".if n ", r".ie t \{", ".el", ".de X\n", ".ds a ", r"\*a",
    r"\f(", r"\s+", "T{\n", ".br\n", ".TS\n", ".TE\n", ".It ", ".Op ", "Ns ", ".Bl\n", ".El\n", ".TP\n", ".nf\n",
    r"\N'9999999'", r"\N'0'", r"\N'55296'", r"\[uFFFFFF]", r"\[uD800]", r"\(:a"])  # fmt: skip


@given(st.lists(PIECES, max_size=30).map("".join))
def test_any_text_is_read(source):
    assert "\0" not in manual_to_text(source)[1].encode().decode()  # nor any half of a character


@pytest.mark.parametrize("unit", [
    " ", r"\*a", ".if n ", r"\[", r"\h'", '.B "', ".TP\n", ".TS\nT{\n", ".de a\n", ".ds a b\n", ".Op ", "\\\n",
    r".ie t \{" + "\n", ".IP a\n",
])  # fmt: skip
def test_any_page_is_read_in_linear_time(read, unit):
    source = ".TH A 1\n.ds a " + "x" * 5_000 + "\nword\n" + unit * (200_000 // len(unit))
    began = time.process_time()
    [doc] = read("a.1", source)
    assert time.process_time() - began < 5
    assert len(doc.text) < 2_000_000


@pytest.mark.parametrize(("name", "content", "said"), [
    ("lib.so.1", b"\x7fELF\0", "is binary, not text"), ("log.1", "word", "is no manual page with a text of its own"),
    ("a.1", ".TH A 1\n", "is no manual page"), ("b.1", ".so man1/a.1\n", "is no manual page"),
    ("README", b"\0", "is binary"), ("a.jsonl.gz", "{}", "is of no kind"), ("readme", "x", "is of no kind"),
    ("DATA.xml", "x", "is of no kind"), ("changes.xml", "x", "is of no kind"), ("newsletter", "x", "is of no kind"),
])  # fmt: skip
def test_what_only_looks_like_one_counts_among_files_of_other_kinds(read, name, content, said):
    [skipped] = read(name, content)
    assert said in skipped.reason
    assert skipped.kind == "unsupported"


TEXTS = "README README.Debian FAQ HOWTO-2 COPYING.gz ChangeLog changelog.Debian.gz copyright LICENSE-MIT"


@pytest.mark.parametrize("name", TEXTS.split())
def test_texts_without_a_suffix_are_read_by_their_names(read_one, name):
    content = b"Lamps shine.\n"
    doc = read_one(name, gzip.compress(content) if name.endswith(".gz") else content)
    assert (doc.text, doc.kind, doc.doc_id) == ("Lamps shine.\n", "txt", name)


def test_what_is_packed_is_read_as_what_it_holds(read_one, reason):
    assert read_one("lamp.8.gz", gzip.compress(MAN.encode())).text == TEXT
    doc = read_one("a.rst.txt", "Lamps\n=====\n\nShine.\n")
    assert (doc.kind, doc.title, doc.text) == ("rst", "Lamps", "# Lamps\n\nShine.\n")
    assert read_one("some_lamps.txt.gz", gzip.compress(b"Shine.")).title == "some lamps"
    assert reason("a.txt.gz", b"word") == "is no whole gzip file; save it again"
    assert reason("b.txt.gz", gzip.compress(b"word" * 99)[:-9]) == "is no whole gzip file; save it again"
    assert reason("c.txt.gz", gzip.compress(b"")) == "is empty"


def test_a_packed_bomb_costs_no_more_than_the_limit(tmp_path):
    path = tmp_path / "bomb.txt.gz"
    path.write_bytes(gzip.compress(b"0" * 20_000_000))
    with BoundedReader() as reader:
        [skipped] = reader.read(path, root=tmp_path, max_bytes=1_000_000, follow_links=False)
    assert isinstance(skipped, SkippedSource)
    assert "is larger than 1 MB" in skipped.reason
