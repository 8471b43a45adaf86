"""Runs rows of the catalogue on real ranks: eager, and compiled by each backend, against each other."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor

from tp_compile_pass import compat
from tp_compile_pass.demo.catalogue import CALL_SITES, CallSite
from tp_compile_pass.demo.catalogue.modules import WaitingMLP, parallelized
from tp_compile_pass.explain import explain
from tp_compile_pass.report.record import Report
from tp_compile_pass.testing import RankError, RankPool

EAGER, BACKENDS = "eager", ("inductor", "tp_inductor")
#: Seconds one row may take with one backend, a C++ compiler's first start included.
ROW_TIMEOUT = 300.0

#: What became of a row, best first. `ok`: one graph (fullgraph=True), and eager's numbers. `graph break`: Dynamo
#: refuses it with fullgraph=True. `error`: it does not compile, or does not run. `wrong`: other numbers than eager's.
VERDICTS = ("ok", "graph break", "error", "wrong")


@dataclass(frozen=True)
class Outcome:
    """A verdict; where it is not `ok`, `detail` is what was raised or what differed, in one line."""

    verdict: str
    detail: str = ""

    def worse_than(self, other: Outcome) -> bool:
        return VERDICTS.index(self.verdict) > VERDICTS.index(other.verdict)


def run_row(ranks: RankPool, name: str) -> dict[str, Outcome]:
    """Runs a row eagerly and with each backend. Of several ranks' outcomes the worst counts.

    Where eager itself fails there is nothing to compare with, and the backends are absent.
    """
    outcomes: dict[str, Outcome] = {}
    for backend in (EAGER, *BACKENDS):
        try:
            answers = ranks.run(_on_rank, name, backend, timeout=ROW_TIMEOUT)
            outcomes[backend] = max(answers, key=lambda outcome: VERDICTS.index(outcome.verdict))
        except RankError as error:  # a rank died, or the ranks wait for each other
            outcomes[backend] = Outcome("error", _gist(error))
        if outcomes[EAGER].verdict != "ok":
            break
    return outcomes


def explain_model() -> Report:
    """On a rank: `explain` of a tensor-parallel MLP whose row-parallel layer waits as inference engines' do."""
    with _quiet(), torch.no_grad():
        torch.manual_seed(0)
        model = parallelized(WaitingMLP(), _mesh())
        return explain(model, fullgraph=True)(torch.ones(4, 3))


def _on_rank(name: str, backend: str) -> Outcome:
    """On a rank: the row's outcome with one backend, or eagerly."""
    row, mesh = CALL_SITES[name], _mesh()
    with _quiet():
        if backend == EAGER:
            try:
                _results(row, mesh)
            except Exception as error:
                return Outcome("error", _gist(error))
            return Outcome("ok")
        expected = _results(row, mesh)
        try:
            got = _results(row, mesh, backend)
        except Exception as error:
            return Outcome("graph break" if compat.is_graph_break(error) else "error", _gist(error))
        try:
            torch.testing.assert_close(got, expected)
        except AssertionError as error:
            return Outcome("wrong", _gist(error))
    return Outcome("ok")


def _mesh() -> DeviceMesh:
    return init_device_mesh("cpu", (dist.get_world_size(),))


def _results(row: CallSite, mesh: DeviceMesh, backend: str = "") -> list[torch.Tensor]:
    """The outputs of two calls, and the input's gradients, as plain tensors."""
    fn: Any = row.make(mesh)
    if backend:
        fn = torch.compile(fn, backend=backend, fullgraph=True)
    results = []
    for call in range(2):
        x = (torch.arange(6.0).reshape(2, 3) + call) * (mesh.get_local_rank() + 1) + 1
        x.requires_grad_(row.backward)
        out = fn(*row.before(mesh)(x)) if row.before else fn(x)
        tensors = [leaf.to_local() if isinstance(leaf, DTensor) else leaf for leaf in compat.tree_leaves(out)]
        tensors = [tensor * 1 for tensor in tensors]  # waits where nobody did yet
        results += [tensor.detach() for tensor in tensors]
        if row.backward:
            torch.stack([tensor.sum() for tensor in tensors]).sum().backward()
            assert x.grad is not None
            results.append(x.grad)
    return results


def _gist(error: BaseException) -> str:
    """The line of an error that says what is wrong; torch surrounds it with advice and tracebacks."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = ("has no attribute", "async_op", "Explanation:", "Error:", "gave no answer", "died with")
    line = next((line for mark in telling for line in lines if mark in line), lines[0] if lines else "")
    return line if line.startswith(type(error).__name__) else f"{type(error).__name__}: {line}"


@contextmanager
def _quiet() -> Iterator[None]:
    """No warnings and logs from torch about rows that it is known not to like."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.disable(logging.CRITICAL)
        try:
            yield
        finally:
            logging.disable(logging.NOTSET)
