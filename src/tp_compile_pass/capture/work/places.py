"""What capture did with each call of dist.*, by the user's line: kept while tracing, filed in the graph's report.

Tracing comes before the backend is called and knows no report; the compilation's id ties the two together.
"""

from __future__ import annotations

import linecache

from tp_compile_pass import compat, compat_dynamo
from tp_compile_pass.compat_dynamo import Translator
from tp_compile_pass.report.record import PassResult, Place
from tp_compile_pass.report.source import SourceLine

NAME = "work_call_sites"
#: Compilations that never reach the backend (an error while tracing) leave theirs behind; so many are kept.
_KEPT = 64
_seen: dict[str, PassResult] = {}


def note(tx: Translator, what: str, reason: str = "", line: SourceLine | None = None) -> None:
    """Files a call site (at `line`, else the one being traced): captured, or why it was left to torch."""
    compile_id = compat.compile_id()
    while len(_seen) >= _KEPT and compile_id not in _seen:
        del _seen[next(iter(_seen))]
    result = _seen.setdefault(compile_id, PassResult(NAME))
    place = Place("", what, line or line_of(tx), reason)
    filed = result.skipped if reason else result.applied
    if place not in filed:  # Dynamo traces a function again when it breaks the graph
        filed.append(place)


def line_of(tx: Translator) -> SourceLine:
    file, line, function = compat_dynamo.user_line(tx)
    return SourceLine(file, line, function, linecache.getline(file, line).strip())


def take() -> PassResult | None:
    """What was noted in the compilation that is running, and in those before it that broke the graph before there was
    one; None if nothing was."""
    if not _seen:
        return None
    taken = PassResult(NAME)
    for result in _seen.values():
        taken.applied += result.applied
        taken.skipped += result.skipped
    _seen.clear()
    return taken


def forget() -> None:
    """Drops what no graph came to take: Dynamo starts afresh, and counts its compilations from 0 again."""
    _seen.clear()
