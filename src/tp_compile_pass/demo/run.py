"""Runs rows of the catalogue on a rank: eager, and compiled by each backend, against each other."""

from __future__ import annotations

import logging
import warnings
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_leaves

from tp_compile_pass import compat
from tp_compile_pass.demo.catalogue import CALL_SITES, CallSite
from tp_compile_pass.demo.catalogue.modules import WaitingMLP, parallelized
from tp_compile_pass.explain import explain
from tp_compile_pass.report.record import Report

BACKENDS = ("inductor", "tp_inductor")

#: What a backend makes of a row, best first. `ok`: one graph (fullgraph=True), and eager's numbers. `graph break`:
#: refused with fullgraph=True. `error`: it does not compile or does not run. `wrong`: other numbers than eager's.
VERDICTS = ("ok", "graph break", "error", "wrong")


@dataclass(frozen=True)
class Outcome:
    """A verdict, and what was raised or differed where it is not `ok`."""

    verdict: str
    detail: str = ""

    def worse_than(self, other: Outcome) -> bool:
        return VERDICTS.index(self.verdict) > VERDICTS.index(other.verdict)


def run_row(name: str, backends: tuple[str, ...] = BACKENDS) -> dict[str, dict[str, str]]:
    """Runs the row `name` on this rank, eager first; every rank of the two has to call it.

    Returns {"eager" or a backend: Outcome as a dict}. Where eager itself fails there is nothing to compare with, and the
    backends are not tried.
    """
    row = CALL_SITES[name]
    with _quiet():
        mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
        try:
            expected = _results(row, mesh, None)
        except Exception as error:
            return {"eager": asdict(Outcome("error", _gist(error)))}
        outcomes = {backend: _outcome(row, mesh, backend, expected) for backend in backends}
    return {name: asdict(outcome) for name, outcome in {"eager": Outcome("ok"), **outcomes}.items()}


def explain_model() -> Report:
    """`explain` of a tensor-parallel MLP whose row-parallel layer waits as inference engines do, on this rank."""
    with _quiet():
        mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
        torch.manual_seed(0)
        model = parallelized(WaitingMLP(), mesh)
        return explain(model, fullgraph=True)(torch.ones(4, 3))


def _outcome(row: CallSite, mesh: DeviceMesh, backend: str, expected: list[torch.Tensor]) -> Outcome:
    compat.reset_dynamo()
    try:
        got = _results(row, mesh, backend)
    except Exception as error:
        return Outcome("graph break" if compat.is_graph_break(error) else "error", _gist(error))
    try:
        torch.testing.assert_close(got, expected)
    except AssertionError as error:
        return Outcome("wrong", _gist(error))
    return Outcome("ok")


def _results(row: CallSite, mesh: DeviceMesh, backend: str | None) -> list[torch.Tensor]:
    """The row's outputs of two calls (and input gradients), as plain tensors."""
    fn: Any = row.make(mesh)
    if backend is not None:
        fn = torch.compile(fn, backend=backend, fullgraph=True)
    results = []
    for call in range(2):
        x = (torch.arange(6.0).reshape(2, 3) + call) * (mesh.get_local_rank() + 1) + 1
        x.requires_grad_(row.backward)
        out = _plain(fn(*(row.before(mesh)(x) if row.before else (x,))))
        results += [tensor.detach().clone() for tensor in out]
        if row.backward:
            sum(tensor.sum() for tensor in out).backward()  # type: ignore[union-attr]
            assert x.grad is not None
            results.append(x.grad)
    return results


def _plain(out: Any) -> list[torch.Tensor]:
    local = [leaf.to_local() if isinstance(leaf, DTensor) else leaf for leaf in tree_leaves(out)]
    return [leaf * 1 for leaf in local]


def _gist(error: Exception) -> str:
    """The line of an error that says what is wrong: torch wraps it in pages of advice and traceback."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = ("has no attribute", "async_op", "Explanation:", "Error:")
    line = next((line for mark in telling for line in lines if mark in line), lines[0] if lines else "")
    return f"{type(error).__name__}: {line}"


class _quiet:
    """Silences torch's warnings and logs on purposely unsupported code."""

    def __enter__(self) -> None:
        self._warnings = warnings.catch_warnings()
        self._warnings.__enter__()
        warnings.simplefilter("ignore")
        logging.disable(logging.CRITICAL)

    def __exit__(self, *exc: object) -> None:
        logging.disable(logging.NOTSET)
        self._warnings.__exit__(*exc)  # type: ignore[arg-type]
