"""`explain(fn)(*args)`: compile, run once, and return what was done."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tp_compile_pass import compat
from tp_compile_pass.report import record
from tp_compile_pass.report.record import Report


def explain(fn: Callable[..., Any], **compile_kwargs: Any) -> Callable[..., Report]:
    """Like `torch._dynamo.explain`, for `backend="tp_inductor"`.

    `explain(fn)(*args, **kwargs)` compiles `fn` (a function or module; one that is compiled already is compiled anew
    from its original), runs it once on the arguments and returns the Report. Every rank of the process groups that
    `fn` communicates on has to call it, as for `fn` itself. Torch's caches of compiled graphs are not read, so that
    every graph and its order is seen; compiled code of this process is dropped (`torch.compiler.reset()`) and is
    compiled anew on its next call.

    Keywords go to `torch.compile` (dynamic, mode, options, fullgraph). The backward graph is included where the torch
    version can compile it at once (2.8 and later); before, it joins the report when `.backward()` runs.
    """
    original = getattr(fn, "_orig_mod", None) or getattr(fn, "_torchdynamo_orig_callable", None) or fn

    def run(*args: Any, **kwargs: Any) -> Report:
        torch.compiler.reset()
        compiled = torch.compile(original, backend="tp_inductor", **compile_kwargs)
        with record.collecting() as graphs, compat.without_caches(), compat.compile_backward_at_once():
            compiled(*args, **kwargs)
        return Report(graphs)

    return run
