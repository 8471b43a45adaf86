"""Applies the rules: to a graph that torch hands us, and to what a pass of ours made of one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

import torch
from torch.fx import Node

from tp_compile_pass.failsafe import failing_closed
from tp_compile_pass.ir import collectives
from tp_compile_pass.options import TPOptions
from tp_compile_pass.report.record import Finding, GraphReport
from tp_compile_pass.report.source import source_line
from tp_compile_pass.verify import handles
from tp_compile_pass.verify.events import Start, Trace
from tp_compile_pass.verify.rules import GRAPH_RULES, PHASE_RULES
from tp_compile_pass.verify.snapshot import Snapshot, expected, snapshot
from tp_compile_pass.verify.trace import trace


class VerifyError(RuntimeError):
    """The program communicates in a way that gives wrong numbers or a hang. The message has the lines."""


class VerifyWarning(UserWarning):
    """The program communicates in a way that is suspicious, or wrong with `tp.verify=warn`."""


class BrokenByPass(RuntimeError):
    """A pass of ours broke a rule; its edits are undone."""


def findings(seen: Trace, phase: str) -> list[Finding]:
    """Every violation of a rule over one graph, each place once."""
    found: dict[tuple[str, str, str], Finding] = {}
    for rule in GRAPH_RULES:
        for node, words, certain in rule.find(seen):
            start: Start = words["start"]
            message = rule.message.format(node=described(node), **{**words, "start": described(start.node)})
            severity = "error" if rule.certain and certain and not seen.guessed else "warning"
            line = source_line(node) or source_line(start.node)
            finding = Finding(rule.name, phase, node.name, message, rule.advice, severity, line)
            found.setdefault((rule.name, node.name, start.node.name), finding)
    return list(found.values())


def check_captured(gm: torch.fx.GraphModule, options: TPOptions, report: GraphReport) -> None:
    """Warns about what the graph that Dynamo captured does with tensors that c10d is working on."""
    if options.verify == "off":
        return
    found: list[Finding] = []
    with failing_closed("verifying the captured graph", options, report):
        found = handles.findings(gm)
    deliver(found, options, report)


def check_graph(
    gm: torch.fx.GraphModule, phase: str, options: TPOptions, report: GraphReport, goes_on: bool = False
) -> None:
    """Checks a graph that torch made of the user's program and reports each violation.

    With `tp.verify=error` a certain one raises VerifyError; every other warns. `goes_on`: the program ends this graph
    at a graph break, so that what is in flight at its end is no concern.
    """
    if options.verify == "off":
        return
    found: list[Finding] = []
    with failing_closed(f"verifying the {phase} graph", options, report):
        found = [f for f in findings(trace(gm), phase) if not (goes_on and f.rule == "leaves-in-flight")]
    deliver(found, options, report)


def deliver(found: list[Finding], options: TPOptions, report: GraphReport) -> None:
    """Files findings and shows them. With `tp.verify=error`, VerifyError is raised for those that are errors."""
    report.findings += found
    fatal = [f for f in found if f.severity == "error" and options.verify == "error"]
    for finding in found:
        if finding not in fatal:
            report.warn(str(finding), VerifyWarning)
    if fatal:
        raise VerifyError("\n".join(f"tp_inductor: {finding}" for finding in fatal))


class PassCheck:
    """Watches one pipeline of passes over `gm`: what each pass leaves is compared with what it found."""

    def __init__(self, gm: torch.fx.GraphModule) -> None:
        self._gm = gm
        self._before, self._broken = self._look()

    def after_pass(self, replaced: Mapping[tuple[int, str], str | None]) -> None:
        """Raises BrokenByPass where the pass that just ran broke a rule; else what it left is what the next finds.
        `replaced` are the collectives that it took out on purpose."""
        after, broken = self._look()
        reasons = list(differences(expected(self._before, after, replaced), after))
        reasons += [str(f) for rule, many in broken.items() for f in many[len(self._broken.get(rule, ())) :]]
        if reasons:
            raise BrokenByPass(f"the graph it left breaks {len(reasons)} rule(s): " + "; ".join(reasons))
        self._before, self._broken = after, broken

    def _look(self) -> tuple[Snapshot, dict[str, list[Finding]]]:
        seen = trace(self._gm)
        by_rule: dict[str, list[Finding]] = {}
        for finding in findings(seen, "captured"):
            by_rule.setdefault(finding.rule, []).append(finding)
        return snapshot(seen), by_rule


def differences(before: Snapshot, after: Snapshot) -> Iterator[str]:
    """What a step that must not change communication did to it."""
    told: Counter[str] = Counter()
    for rule in PHASE_RULES:
        for entry, words in rule.find(before, after):
            told[rule.name] += 1
            if told[rule.name] <= 3:  # one mistake often shows in every collective that follows
                yield f"{rule.name}: " + rule.message.format(entry=entry.text, **words)


def described(node: Node) -> str:
    """A node in the user's terms: what it is, its name in the graph, and the line it comes from."""
    row = collectives.collective_op(node)
    what = f"{row.kind} {node.name!r}" if row else repr(node.name)
    line = source_line(node)
    return f"{what} ({line}{f': {line.code}' if line and line.code else ''})" if line else what
