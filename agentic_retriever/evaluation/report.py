"""The report of a benchmark: one page that holds everything it shows."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from agentic_retriever.evaluation.markup import text as _text
from agentic_retriever.evaluation.measures import MEASURES
from agentic_retriever.evaluation.options import AUTO
from agentic_retriever.evaluation.plots import target_svgs

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from agentic_retriever.evaluation.results import Benchmark, Row, TargetResult
    from agentic_retriever.evaluation.routing import RoutingBenchmark

WORST: Final = 20
"""Questions that are listed with their decisions."""

_ID: Final = re.compile(r'(\bid="|url\(#|href="#)')
_SHOWN: Final = 300

_STYLE: Final = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem;
  background: Canvas; color: CanvasText; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.2rem; margin-top: 2.5rem; } h3 { font-size: 1rem; margin-bottom: .3rem; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .2rem .6rem; text-align: left; border-bottom: 1px solid #8884; vertical-align: top; }
.note { border-left: 3px solid #c2703d; padding-left: .7rem; } small { opacity: .75; }
figure { margin: 0; max-width: 44rem; } figcaption { font-weight: 600; } svg { max-width: 100%; height: auto; }
"""


def report_html(result: Benchmark) -> str:
    """Write the report."""
    title = "Benchmark: " + ", ".join(result.results)
    parts = [f"<h1>{_text(title)}</h1>", _run(result)]
    if len(result.results) > 1:
        parts.append("<h2>Mean over the data sets</h2>" + _means(result))
    if result.stage_one is not None:
        parts.append("<h2>Choice of the index</h2>" + _stage_one(result.stage_one))
    for at, target in enumerate(result.results.values()):
        parts.append(_target(target, at))
    parts.append(
        "<h2>Machine and versions</h2>" + _table(["", ""], [*result.machine.items(), *result.versions.items()])
    )
    # No source may be loaded from anywhere: what stands in the page is all there is.
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{_text(title)}</title><style>{_STYLE}</style></head>\n<body>{''.join(parts)}</body></html>\n"
    )


def _run(result: Benchmark) -> str:
    options = result.options
    told = f"mode {options.mode}, {options.depth} nodes fetched for a question, seed {options.seed}"
    if options.limit is not None:
        told += f", at most {options.limit} questions of a data set"
    return (
        f"<p>{_text(told)}. Documents count by their best node; intervals are 95 % bootstrap intervals of the mean.</p>"
    )


def _means(result: Benchmark) -> str:
    table = _table(
        ["row", *MEASURES], [[name, *(f"{v:.3f}" for v in means.values())] for name, means in result.means().items()]
    )
    found = result.choice()
    if found is None:
        return table
    closed = "-" if found.gap_closed is None else f"{found.gap_closed:.0%}"
    told = (
        f"Best fixed strategy: {found.best_fixed} {found.best_fixed_mean:.3f}; auto {found.auto_mean:.3f}; oracle "
        f"{found.oracle_mean:.3f}; share of the gap between them that auto closes: {closed}."
    )
    return f"{table}<p>{_text(told)}</p>"


def _stage_one(found: RoutingBenchmark) -> str:
    """Show how well each way finds the right index, over all questions and by index."""
    rows = []
    for name, one in found.stage_one.items():
        ece = "-" if one.ece is None else f"{one.ece:.3f}"
        reached = "-" if one.reached is None else f"{one.reached:.3f}"
        scores = [
            f"{value:.3f}" for value in (one.outcomes.accuracy, one.outcomes.macro_accuracy, one.outcomes.macro_f1)
        ]
        shown = f"{name} (peer)" if one.peer else name
        rows.append([shown, *scores, reached, ece, f"{one.latency.p50_ms:.2f}", f"{one.latency.p95_ms:.2f}"])
    head = [
        "way",
        "accuracy",
        "macro accuracy",
        "macro F1",
        "among those searched",
        "calibration error",
        "p50 ms",
        "p95 ms",
    ]
    notes = [*found.notes, *(f"{name} was left out: {why}" for name, why in found.left_out.items())]
    by_index = {name: one.outcomes.by_label() for name, one in found.stage_one.items()}
    shares = [
        [index, *(f"{table[index]['recall']:.3f}" if index in table else "-" for table in by_index.values())]
        for index in found.indexes
    ]
    return (
        _table(head, rows)
        + "<h3>Accuracy by index</h3>"
        + _table(["index", *by_index], shares)
        + "".join(f'<p class="note">{_text(note)}</p>' for note in notes)
    )


def _target(result: TargetResult, at: int) -> str:
    facts = result.facts
    told = (
        f"{facts.get('documents', 0):,} documents, {facts.get('nodes', 0):,} nodes, {facts.get('queries', 0):,} "
        f"questions; embedding {facts.get('embedding', '')}; vectors of documents: {facts.get('vectors', '')}"
    )
    parts = [f"<h2>{_text(result.target)}</h2><p>{_text(told)}</p>"]
    parts += [f'<p class="note">{_text(note)}</p>' for note in result.notes]
    parts += [
        f'<p class="note">{_text(name)} did not take part: {_text(why)}</p>' for name, why in result.not_served.items()
    ]
    parts += [f'<p class="note">{_text(line)}</p>' for line in result.problems.summary()]
    parts.append(_quality(result))
    parts.append("<h3>Time, failures, tokens</h3>" + _costs(result.rows.values()))
    if result.routing is not None:
        parts.append(_routing(result))
    if result.answers is not None:
        parts.append(_answers(result))
    parts += [_figure(name, svg, f"t{at}-{number}-") for number, (name, svg) in enumerate(target_svgs(result).items())]
    parts.append(_worst(result))
    return "".join(parts)


def _figure(name: str, svg: str, prefix: str) -> str:
    """Frame a plot; ids in it get a prefix, as those of several plots in one page must not meet."""
    unique = _ID.sub(lambda found: found.group(1) + prefix, svg)
    return f"<figure><figcaption>{_text(name)}</figcaption>{unique}</figure>"


def _quality(result: TargetResult) -> str:
    against = result.against
    rows = []
    for name, row in result.rows.items():
        low, high = row.intervals[MEASURES[0]]
        cells = [
            _named(row),
            f"{row.mean():.3f} [{low:.3f}, {high:.3f}]",
            *(f"{row.mean(m):.3f}" for m in MEASURES[1:]),
        ]
        one = None if against is None else against.rows.get(name)
        tested = "" if one is None else f"{one.difference:+.3f}, p = {one.p_holm:.3g}"
        rows.append([*cells, "baseline" if against is not None and name == against.baseline else tested])
    head = ["row", f"{MEASURES[0]} [95 %]", *MEASURES[1:], "against the baseline (randomisation test, Holm)"]
    return _table(head, rows)


def _costs(rows: Iterable[Row]) -> str:
    made = []
    for row in rows:
        told = row.to_dict()
        stages = ", ".join(f"{name} {ms['p50']:.1f}/{ms['p95']:.1f}" for name, ms in told["stages_ms"].items())
        cold = "-" if row.cold_ms is None else f"{row.cold_ms:.0f}"
        speed = told["queries_per_second"]
        times = [f"{told['p50_ms']:.1f}", f"{told['p95_ms']:.1f}", cold, "-" if speed is None else f"{speed:.1f}"]
        spent = [told["failed"], told["llm_calls"], told["tokens"], f"{told['usd']:.4f}"]
        made.append([_named(row), *times, stages or "-", *spent])
    head = ["row", "p50 ms", "p95 ms", "cold ms", "per second", "stages, p50/p95 ms"]
    return _table([*head, "failed", "model calls", "tokens", "USD"], made)


def _routing(result: TargetResult) -> str:
    found = result.routing
    if found is None:
        return ""
    low, high = found.regret_interval
    closed = "-" if found.gap_closed is None else f"{found.gap_closed:.0%}"
    rows = [
        ("best fixed strategy", f"{found.best_fixed} ({found.best_fixed_mean:.3f})"),
        ("auto", f"{found.auto_mean:.3f}"),
        ("oracle", f"{found.oracle_mean:.3f}"),
        ("share of the gap between them that auto closes", closed),
        ("mean regret [95 %]", f"{found.mean_regret:.3f} [{low:.3f}, {high:.3f}]"),
        ("no strategy was better than the chosen one", f"{found.accuracy:.1%}"),
        ("chosen one is the cheapest within 0.02 of the best", f"{found.cost_aware_accuracy:.1%}"),
        ("questions on which the choice matters by more than 0.02", f"{found.decided:.1%}"),
        ("cheapest strategy within 0.02 of the best mean", found.cheapest_good),
        ("chosen", ", ".join(f"{name} {count}" for name, count in found.picked.items())),
    ]
    table = found.outcomes.confusion()
    labels = found.outcomes.labels
    confusion = _table(["best \\ chosen", *labels], [[g, *(table[g].get(c, 0) for c in labels)] for g in table])
    return "<h3>Choice of the strategy</h3>" + _table(["", ""], rows) + "<h3>Confusion</h3>" + confusion


def _answers(result: TargetResult) -> str:
    found = result.answers
    if found is None:
        return ""
    rows = [
        [name, f"{mean:.3f} [{found.intervals[name][0]:.3f}, {found.intervals[name][1]:.3f}]", found.counts[name],
         found.judged_by[name]]
        for name, mean in found.means.items()
    ]  # fmt: skip
    silent = found.abstention
    told = (
        f"{silent.abstained} of {silent.asked} questions were declined, {silent.right} of the {silent.out_of_scope} "
        "that nothing answers"
    )
    notes = "".join(f'<p class="note">{_text(note)}</p>' for note in found.notes)
    return f"<h3>Answers</h3>{_table(['measure', 'mean [95 %]', 'questions', 'judged by'], rows)}<p>{told}</p>{notes}"


def _worst(result: TargetResult) -> str:
    """List the questions on which the router, or else the best row, did worst."""
    row = result.rows.get(AUTO) or max(result.rows.values(), key=lambda one: one.mean())
    measure = MEASURES[0]
    regret = {} if result.routing is None else result.routing.regret
    order = sorted(row.quality, key=lambda q: (row.quality[q][measure], -regret.get(q, 0.0), q))[:WORST]
    ours = [one for one in result.rows.values() if not one.peer and one.name not in {AUTO, "oracle"}]
    rows = []
    for query_id in order:
        record, query = row.records[query_id], result.queries[query_id]
        best = max(ours, key=lambda one: one.quality.get(query_id, {}).get(measure, 0.0), default=row)
        reached = best.quality.get(query_id, {}).get(measure, 0.0)
        sure = float(record.get("confidence") or 0)
        decision = f"{record.get('strategy', row.name)} ({sure:.2f}): {record.get('reason', '')}"
        wanted = ", ".join(doc_id for doc_id, grade in query.relevance.items() if grade > 0)
        rows.append(
            [query_id, query.text[:_SHOWN], f"{row.quality[query_id][measure]:.3f}", f"{best.name} {reached:.3f}",
             str(record.get("error") or decision)[:_SHOWN], ", ".join(record.get("docs", [])[:5]), wanted[:_SHOWN]]
        )  # fmt: skip
    head = ["id", "question", measure, "best strategy", "decision", "found", "relevant"]
    return f"<h3>The {len(rows)} worst questions of {_text(row.name)}</h3>" + _table(head, rows)


def _named(row: Row) -> str:
    return f"{row.name} (peer)" if row.peer else row.name


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    top = "".join(f"<th>{_text(cell)}</th>" for cell in head) if any(head) else ""
    body = "".join("<tr>" + "".join(f"<td>{_text(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'
