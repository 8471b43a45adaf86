"""Selecting `tp_inductor` for code that cannot be given a backend's name: `set_default` and `patch_inductor`."""

from __future__ import annotations

import threading
from types import TracebackType

import torch

NAME = "tp_inductor"

_lock = threading.Lock()
_open = 0


def set_default() -> None:
    """Makes `tp_inductor` what `torch.compile(model)` uses where the call names no backend; for the whole process.

    `torch.compiler.set_default_backend(None)` undoes it. Needs torch 2.13 or later: raises RuntimeError on an older
    one.
    """
    _require_registered()
    setter = getattr(torch.compiler, "set_default_backend", None)
    if setter is None:
        raise RuntimeError(
            f"set_default() needs torch 2.13 or later, and this is {torch.__version__}: name the backend "
            f'(torch.compile(model, backend="{NAME}")), or call tp_compile_pass.patch_inductor()'
        )
    setter(NAME)


class Patch:
    """What `patch_inductor()` returns: `undo()` it, or leave its `with` block, to give Inductor its name back."""

    def __init__(self) -> None:
        self._active = True

    def undo(self) -> None:
        """Ends the patch, unless another one is still open. A second call does nothing."""
        from tp_compile_pass import compat_switch

        global _open
        with _lock:
            if self._active:
                self._active = False
                _open -= 1
                if _open == 0:
                    compat_switch.switch_back()

    def __enter__(self) -> Patch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.undo()


def patch_inductor() -> Patch:
    """From now on `torch.compile(model)` and `torch.compile(model, backend="inductor")` mean `tp_inductor`.

    For code that names Inductor and cannot be changed. It holds for every later call of `torch.compile` in this
    process, `nn.Module.compile` included, until it is undone: `with patch_inductor(): …`, or `patch_inductor().undo()`
    on what it returned. What was compiled before, and what is compiled under it after it was undone, keeps its
    backend. `torch._dynamo.optimize("inductor")` does not pass through `torch.compile`, and is left alone.

    Raises RuntimeError, and changes nothing, on a torch that it was not checked on.
    """
    from tp_compile_pass import compat_switch

    global _open
    _require_registered()
    if reason := compat_switch.refusal():
        raise RuntimeError(
            f'patch_inductor() changes nothing: {reason}. Name the backend instead: torch.compile(…, backend="{NAME}")'
        )
    with _lock:
        if _open == 0:
            compat_switch.switch_inductor_to(NAME)
        _open += 1
    return Patch()


def _require_registered() -> None:
    """Raises RuntimeError where torch would not find the backend by its name."""
    if NAME not in torch.compiler.list_backends():
        raise RuntimeError(
            f"torch does not know the backend {NAME}: tp_compile_pass is importable but not installed "
            "(`pip install .` in its checkout; `tp-compile-pass doctor` says more)"
        )
