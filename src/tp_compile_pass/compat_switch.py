"""The private torch API behind `patch_inductor`: the class that `torch.compile(backend="inductor")` makes.

Checked on torch 2.5.1, 2.6.0, 2.9.1, 2.13.0 and 2.15.0: each looks the class up in its own module at every call of
`torch.compile`, under the same name and with the same parameters (2.13 and later have one more, `name`).
"""

from __future__ import annotations

import inspect
from typing import Any

import torch

from tp_compile_pass import compat

_CLASS = "_TorchCompileInductorWrapper"
_PARAMETERS = ["self", "mode", "options", "dynamic"]
NEWEST = max(tuple(map(int, version.split(".")[:2])) for version in compat.CHECKED)


def refusal() -> str:
    """Why this torch's `torch.compile` cannot be switched over; "" where it can."""
    found = compat.inductor_class()
    if compat.TORCH > NEWEST:
        return f"torch {torch.__version__} is newer than any that it was checked on ({', '.join(compat.CHECKED)})"
    parameters = list(inspect.signature(found.__init__).parameters) if found is not None else []
    if parameters not in (_PARAMETERS, [*_PARAMETERS, "name"]):
        return f"torch {torch.__version__} has another torch.{_CLASS} than {', '.join(compat.CHECKED)}"
    return ""


def switch_inductor_to(backend: str) -> None:
    """From now on, where `torch.compile` would make Inductor's own object, it makes that of `backend`, by name.

    What was compiled before stays with Inductor.
    """
    original = compat.inductor_class()

    class Kind(type(original)):  # type: ignore[misc]
        """torch asks `isinstance(…, torch._TorchCompileInductorWrapper)`, and means Inductor's objects."""

        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, original)  # type: ignore[arg-type]

    class Switched(original, metaclass=Kind):  # type: ignore[misc, valid-type]
        tp_compile_pass_original = original

        def __new__(cls, *args: Any, **kwargs: Any) -> Any:
            return torch._TorchCompileWrapper(backend, *_taken(torch._TorchCompileWrapper, *args, **kwargs))

    setattr(torch, _CLASS, Switched)


def switch_back() -> None:
    """Undoes `switch_inductor_to`, for what is compiled from now on."""
    setattr(torch, _CLASS, compat.inductor_class())


def _taken(target: Any, mode: Any, options: Any, dynamic: Any, name: Any = None) -> list[Any]:
    """The arguments that the wrapper of a named backend takes, which has no `name` on torch 2.13."""
    named = "name" in inspect.signature(target.__init__).parameters
    return [mode, options, dynamic, *([name] if named else [])]
