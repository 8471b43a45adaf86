"""Do all ranks compile the same communication? Asked at compile time, through the default process group's store.

Each rank publishes the fingerprint of every captured graph under the compiled function and a running number: one store
round-trip, and never a collective. Ranks compare what they have in common: for each process group, its members.

`tp.rank_check=warn` compares in a background thread and delays nothing. `error` waits, where the graph communicates,
until the other members have published theirs, and raises where they differ or where one does not come in time.

Ranks do not have to compile in step: a graph agrees with a rank when it agrees with *any* graph of that function which
the rank has published, so recompilations that only one rank needs raise no alarm. A function that was split by a graph
break on one rank is told as such, and never is an error by itself.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import torch

from tp_compile_pass import compat
from tp_compile_pass.failsafe import failing_closed
from tp_compile_pass.options import TPOptions
from tp_compile_pass.report.record import GraphReport
from tp_compile_pass.verify.fingerprint import Fingerprint, Step, agree, diff, fingerprint, same_feeds
from tp_compile_pass.verify.trace import trace

#: Seconds between two looks into the store: the first pause, which doubles, and the longest one.
PAUSE, LONGEST_PAUSE = 0.05, 5.0
#: What Dynamo calls the part of a function behind a graph break.
RESUMED = "torch_dynamo_resume_in_"


class RankMismatchError(RuntimeError):
    """Ranks compiled communication that does not meet, or one has not compiled at all (`tp.rank_check=error`)."""


class RankMismatchWarning(UserWarning):
    """The same with `tp.rank_check=warn`."""


@dataclass
class Verdict:
    """What a look at the other ranks found: texts of differences, which of them are only remarkable, who is missing."""

    wrong: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    missing: set[int] = field(default_factory=set)


def check_ranks(gm: torch.fx.GraphModule, options: TPOptions, report: GraphReport) -> None:
    """Publishes what `gm`, a captured graph, communicates, and compares it with the other ranks'.

    Raises RankMismatchError as `tp.rank_check` says. Anything that goes wrong on the way is a warning.
    """
    if options.rank_check == "off":
        return
    verdict: Verdict | None = None
    with failing_closed("comparing the ranks' communication", options, report):
        graph = _session().publish(gm, report)
        if graph is None:
            return
        if options.rank_check == "error" and graph.waits:
            verdict = graph.wait(options.rank_check_timeout)
        else:
            _watch(graph, options.rank_check_timeout, report)
    if verdict is None:
        return
    for remark in verdict.remarks:
        report.warn(remark, RankMismatchWarning)
    texts = verdict.wrong + ([graph.absence(verdict.missing, options.rank_check_timeout)] if verdict.missing else [])
    if texts:
        report.warnings += texts
        raise RankMismatchError("tp_inductor: " + "\n".join(texts))


# ------------------------------------------------------------------------------------------------------- the store
class _Session:
    """What this rank has published since the default process group was made."""

    def __init__(self, world: Any, number: int) -> None:
        self.world, self.number = world, number
        self.rank: int = torch.distributed.get_rank()
        self.store = compat.default_store(f"tp_compile_pass/{number}")
        self.count: Counter[str] = Counter()

    def publish(self, gm: torch.fx.GraphModule, report: GraphReport) -> _Published | None:
        """Publishes the graph; None where there are no other ranks."""
        if self.store is None:
            return None
        function = compat.compiling_function() or "a function"
        mine = fingerprint(trace(gm), compat.ends_in_graph_break(gm))
        graph = _Published(self, function, self.count[function], mine)
        self.count[function] += 1
        self.store.set(graph.key(self.rank), graph.mine.pack())
        return graph


_current: _Session | None = None


def _session() -> _Session:
    global _current
    world = compat.world_group()
    if _current is None or _current.world is not world:
        _current = _Session(world, _current.number + 1 if _current is not None else 0)
    return _current


class _Published:
    """One graph of this rank, number `number` of `function`, and what the other ranks have published for it so far."""

    def __init__(self, session: _Session, function: str, number: int, mine: Fingerprint) -> None:
        self._session, self.function, self.number, self.mine = session, function, number, mine
        self._theirs: dict[int, dict[int, Fingerprint]] = {}
        self._digests: dict[int, set[bytes]] = {}
        me = session.rank
        self._ranks = {g: [r for r in compat.group_ranks(g) or () if r != me] for g in mine.groups}

    @property
    def waits(self) -> bool:
        """Whether the graph has to meet other ranks. The part of a function behind a graph break has not: the break may
        be on this rank alone."""
        return any(self._ranks.values()) and RESUMED not in self.function

    def key(self, rank: int, number: int | None = None) -> str:
        return f"{self.function}/{self.number if number is None else number}/{rank}"

    def wait(self, timeout: float) -> Verdict:
        """Looks until every rank that this graph meets has answered, or `timeout` seconds have passed."""
        deadline, pause = time.monotonic() + timeout, PAUSE
        while True:
            verdict = self.look()
            if verdict.wrong:
                time.sleep(10 * PAUSE)  # the others look too, and this rank may hold the store
            if verdict.wrong or not verdict.missing or time.monotonic() > deadline:
                return verdict
            time.sleep(pause)
            pause = min(2 * pause, 1.0)

    def look(self) -> Verdict:
        """Compares with what the other ranks have published by now."""
        verdict = Verdict()
        world = range(torch.distributed.get_world_size())
        peers = sorted({r for ranks in self._ranks.values() for r in ranks}) if self.waits else list(world)
        for peer in peers:
            if peer != self._session.rank:
                self._compare(peer, verdict)
        return verdict

    def _compare(self, peer: int, verdict: Verdict) -> None:
        theirs = self._read(peer)
        same_place = theirs.get(self.number)
        groups = [g for g, ranks in self._ranks.items() if peer in ranks]
        if same_place is not None:
            groups += [g for g in same_place.groups if g not in groups and self._shared(g, peer)]
        if not groups:
            return
        unmet = [g for g in groups if not any(agree(self._steps(g), t.groups.get(g, [])) for t in theirs.values())]
        if not unmet:
            if same_place is not None:
                self._remark_feeds(peer, groups, same_place, verdict)
            return
        if same_place is None:
            verdict.missing.add(peer)
            return
        for group in unmet:
            self._tell(peer, group, same_place, verdict)

    def _tell(self, peer: int, group: str, other: Fingerprint, verdict: Verdict) -> None:
        ours, theirs, me = self._steps(group), other.groups.get(group, []), self._session.rank
        text = (
            f"ranks {me} and {peer} compiled different communication on process group {group!r} for {self.function} "
            f"(its graph {self.number}):\n{diff(me, ours, peer, theirs)}"
        )
        common = min(len(ours), len(theirs))
        early, broken = (me, self.mine.broken) if len(ours) == common else (peer, other.broken)
        if broken and agree(ours[:common], theirs[:common]):
            verdict.remarks.append(
                f"{text}\nRank {early} has a graph break there; its next graph may go on from there."
            )
        else:
            verdict.wrong.append(f"{text}\nThey will wait for each other forever, or exchange wrong data.")

    def _remark_feeds(self, peer: int, groups: list[str], other: Fingerprint, verdict: Verdict) -> None:
        for group in groups:
            ours, theirs = self._steps(group), other.groups.get(group, [])
            if agree(ours, theirs) and not same_feeds(ours, theirs):
                verdict.remarks.append(
                    f"ranks {self._session.rank} and {peer} compiled the same collectives on process group {group!r} "
                    f"for {self.function}, but feed them differently:\n{diff(self._session.rank, ours, peer, theirs)}"
                )

    def _steps(self, group: str) -> list[Step]:
        return self.mine.groups.get(group, [])

    def _shared(self, group: str, peer: int) -> bool:
        ranks = compat.group_ranks(group) or ()
        return peer in ranks and self._session.rank in ranks

    def _read(self, peer: int) -> dict[int, Fingerprint]:
        """What `peer` has published for this function, by number."""
        known = self._theirs.setdefault(peer, {})
        for number in (self.number, *range(len(known) + 1)):
            if number not in known and self._session.store.check([self.key(peer, number)]):
                known[number] = Fingerprint.unpack(self._session.store.get(self.key(peer, number)))
        return known

    def absence(self, missing: set[int], timeout: float) -> str:
        """The sentence for ranks that have not compiled this graph in time."""
        who = ", ".join(f"rank {rank}" for rank in sorted(missing))
        lines = next((steps[0].line for steps in self.mine.groups.values() if steps), "")
        return (
            f"{who} did not compile {self.function} (its graph {self.number}) within {timeout:.0f} s, and rank "
            f"{self._session.rank} will wait there in a collective{f' ({lines})' if lines else ''}"
        )


# ------------------------------------------------------------------------------------------------- in the background
@dataclass(eq=False)
class _Pending:
    graph: _Published
    deadline: float
    timeout: float
    report: GraphReport
    pause: float = PAUSE
    next_look: float = 0.0


_pending: list[_Pending] = []
_lock = threading.Lock()
_thread: threading.Thread | None = None


def _watch(graph: _Published, timeout: float, report: GraphReport) -> None:
    global _thread
    with _lock:
        _pending.append(_Pending(graph, time.monotonic() + timeout, timeout, report))
        if _thread is None or not _thread.is_alive():
            _thread = threading.Thread(target=_watcher, name="tp_compile_pass rank check", daemon=True)
            _thread.start()


def _watcher() -> None:
    """Looks at each pending graph until it is settled; ends when none is left."""
    while True:
        with _lock:
            if not _pending:
                return
            todo = [item for item in _pending if item.next_look <= time.monotonic()]
        done = [item for item in todo if _settled(item)]
        with _lock:
            for item in done:
                _pending.remove(item)
        time.sleep(PAUSE)


def _settled(item: _Pending) -> bool:
    late = time.monotonic() > item.deadline
    item.next_look = time.monotonic() + item.pause
    item.pause = min(2 * item.pause, LONGEST_PAUSE)
    try:
        verdict = item.graph.look()
    except Exception as error:  # the process group may be gone by now
        item.report.notes.append(f"the ranks' communication was not compared: {type(error).__name__}: {error}")
        return True
    if verdict.missing and not verdict.wrong and not late:
        return False
    if not item.graph.waits and not verdict.wrong and not verdict.remarks and not late:
        return False
    texts = verdict.wrong + verdict.remarks
    if verdict.missing and item.graph.waits:
        texts.append(item.graph.absence(verdict.missing, item.timeout))
    for text in texts:
        item.report.warn(text, RankMismatchWarning)
    return True
