"""``stats``: what the query history shows."""

from __future__ import annotations

import math
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

from agentic_retriever.cli.setup import load_config
from agentic_retriever.errors import ConfigError, InvalidQueryError

if TYPE_CHECKING:
    from pathlib import Path

    from agentic_retriever.cli.console import Console

_MOST_DAYS = 36_500


def run_stats(console: Console, data_dir: Path | None, *, days: float, as_json: bool) -> None:
    """Write the analytics of the last days; opens no index, so it works beside a running router.

    Args:
        console: Where to write.
        data_dir: The data directory, or ``None`` for the configured one.
        days: Length of the period until now; 0 for all there is.
        as_json: Whether to write JSON instead of tables.

    Raises:
        ConfigError: If the history is turned off.
        InvalidQueryError: If the number of days is out of range.
        QueryLogError: If the history cannot be read.
    """
    from agentic_retriever.querylog import open_query_log

    if not (math.isfinite(days) and 0 <= days <= _MOST_DAYS):
        raise InvalidQueryError(f"days must be from 0 to {_MOST_DAYS:,}, got {days:g}")
    log = open_query_log(load_config(data_dir))
    if log is None:
        raise ConfigError("query_log is none, so there is no history; set it to sqlite or the URL of a database")
    since = datetime.now(timezone.utc) - timedelta(days=days) if days else None
    with log:
        found = log.analytics(since)
    if as_json:
        console.json(found.to_dict())
        return
    if not found.queries:
        console.note("no queries in this period" if days else "no queries yet")
        return
    for number, (title, headers, rows) in enumerate(found.tables()):
        if number:
            console.line()
        console.table(headers, rows, title=title)
