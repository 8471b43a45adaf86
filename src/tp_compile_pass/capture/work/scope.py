"""When a call of `dist.*` is captured, what becomes of one that is not, and that no collective gets lost.

`install()` hooks into Dynamo once per process. The hooks ask, for each frame, which backend is tracing; for any but
tp_inductor they hand the call on untouched.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch.distributed as dist
import torch.distributed.nn.functional as dist_nn

from tp_compile_pass import compat_dynamo
from tp_compile_pass.capture.work import coalescing, nn_functional, places
from tp_compile_pass.capture.work.calls import ALWAYS_ASYNC, CALLS, Body, CannotCapture, group_of, is_stacked
from tp_compile_pass.capture.work.handle import WorkHandle, publish
from tp_compile_pass.compat_dynamo import Call, NotConstant, Translator, Variable

_installed = False


def install(backend: Callable[..., Any]) -> None:
    """Captures `dist.*(async_op=True)` in whatever is compiled with `backend`. The second call does nothing."""
    global _installed
    if _installed or not dist.is_available():
        return
    _installed = True
    concerns = partial(_concerns, backend=backend)
    for name, (body, torch_captures_sync) in CALLS.items():
        answer = partial(_answer, body=body, always_async=name in ALWAYS_ASYNC, torch_captures_sync=torch_captures_sync)
        if (fn := getattr(dist.distributed_c10d, name, None)) is not None:
            compat_dynamo.intercept(fn, concerns, answer)
    for name, body in nn_functional.FUNCTIONS.items():
        compat_dynamo.intercept(getattr(dist_nn, name), concerns, partial(_answer_functional, body=body))
    compat_dynamo.intercept(dist.distributed_c10d._coalescing_manager, concerns, _open_manager)
    compat_dynamo.intercept(coalescing.left, concerns, lambda call, original: coalescing.leave(call))
    compat_dynamo.trace_p2p_ops(concerns)
    compat_dynamo.trace_timedelta(concerns)
    compat_dynamo.answer_isinstance(WorkHandle, dist.Work)
    compat_dynamo.at_method_call(dist.Work, concerns, _note_eager_work)
    compat_dynamo.at_region_end(_complete_what_was_dropped)


def _concerns(tx: Translator, backend: Callable[..., Any]) -> bool:
    return compat_dynamo.traces_for(tx, backend)


def _answer(
    call: Call, original: Callable[[], Variable], *, body: Body, always_async: bool, torch_captures_sync: bool
) -> Variable:
    """The handle (None for a synchronous call, as in eager); torch's own treatment of what we cannot capture."""
    try:
        asynchronous = always_async or bool(call.constant("async_op"))
    except NotConstant as error:  # torch's own treatment fails on it, from some versions on not by a graph break
        places.note(call.tx, call.what, str(error))
        return compat_dynamo.break_graph(call.tx)
    try:
        managed = bool(compat_dynamo.notes(call.tx, "managers"))
        if not asynchronous and torch_captures_sync and not managed and _torch_can(call):
            return original()
        group = group_of(call)
        if group.rank < 0:
            return compat_dynamo.variable(call.tx, None)
        answer = body(call, group)
    except (CannotCapture, NotConstant) as error:
        places.note(call.tx, call.what, str(error))
        return original()
    places.note(call.tx, call.what)
    line = places.line_of(call.tx)
    for handle in compat_dynamo.items(answer) or [answer]:
        compat_dynamo.notes(call.tx, "handles").append((compat_dynamo.current_tracer(call.tx), handle, line))
        coalescing.joined(call, handle)
    if asynchronous:
        return answer
    if not managed:
        call.inline(_wait, answer)
    return compat_dynamo.variable(call.tx, None)


def _torch_can(call: Call) -> bool:
    """Whether torch's own treatment of a synchronous call, where there is one, takes these arguments."""
    given = call.arguments.get("async_op")
    return not is_stacked(call) and not (given is not None and compat_dynamo.is_symbolic(given))


def _answer_functional(call: Call, original: Callable[[], Variable], *, body: Body) -> Variable:
    """The tensor that a function of torch.distributed.nn.functional returns."""
    try:
        group = group_of(call)
        if group.rank < 0:
            raise CannotCapture("this rank is not in the group")
        answer = body(call, group)
    except (CannotCapture, NotConstant) as error:
        places.note(call.tx, call.what, str(error))
        return original()
    places.note(call.tx, call.what)
    return answer


def _open_manager(call: Call, original: Callable[[], Variable]) -> Variable:
    try:
        return coalescing.enter(call)
    except NotConstant as error:
        places.note(call.tx, call.what, str(error))
        return original()


def _note_eager_work(tx: Translator, method: str) -> None:
    places.note(tx, f"Work.{method}", "the Work was made outside of what is compiled, by a C++ collective")


def _wait(handle: WorkHandle) -> None:
    handle.wait()


def _complete_what_was_dropped(tx: Translator, survivors: Callable[[], list[Variable]]) -> None:
    """Waits, at the end of the graph, for every handle that traced code neither waited for nor kept: in eager its
    collective would end just the same, and other ranks count on it."""
    open_handles = []
    for tracer, handle, line in compat_dynamo.notes(tx, "handles"):
        done = compat_dynamo.pending_attribute(tx, handle, "_done")
        if tracer is compat_dynamo.current_tracer(tx) and done is not None and not done.as_python_constant():
            parts = [compat_dynamo.pending_attribute(tx, handle, name) for name in ("_results", "_targets")]
            open_handles.append((handle, parts, line))
    kept = {id(variable) for variable in survivors()}
    for handle, parts, line in open_handles:
        if id(handle) not in kept:
            compat_dynamo.inline(tx, publish, *parts)
            places.note(tx, "a handle that is never waited for, completed at the graph's end", line=line)
