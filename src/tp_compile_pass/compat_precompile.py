"""The private torch APIs of torch's precompile cache, which brings whole compiled functions back in another process.

Checked on torch 2.9.1, 2.13.0 and 2.15.0; 2.5 and 2.6 have no such cache.
"""

from __future__ import annotations

from contextlib import ExitStack, nullcontext
from typing import Any

from tp_compile_pass import compat


def precompile_cache_is_on() -> bool:
    """Whether torch saves and loads whole compiled functions by their source alone (TORCH_CACHING_PRECOMPILE=1)."""
    from torch._dynamo import config

    return bool(getattr(config, "caching_precompile", False))


def kept_out_of_precompile_cache(reason: str) -> Any:
    """A context manager to compile a graph under that torch shall leave out of its precompile cache, with `reason`.

    The function that AOTAutograd files there comes back without what we wrap around it. With
    `torch._dynamo.config.strict_precompile` torch raises its PackageError instead. On torch 2.9 a refusal fails inside
    torch (StopIteration): AOTAutograd is kept from filing anything, the backward included, which compiles later.
    """
    from torch._dynamo import config
    from torch._dynamo.symbolic_convert import InstructionTranslator

    if compat.TORCH >= (2, 13):
        InstructionTranslator.current_tx().output.bypass_package(reason)
        return nullcontext()
    stack = ExitStack()
    stack.enter_context(config.patch(caching_precompile=False))
    stack.enter_context(compat.compile_backward_at_once())
    return stack
