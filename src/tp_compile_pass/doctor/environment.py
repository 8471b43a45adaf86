"""What in this process's environment and settings keeps `tp_inductor` from doing its work, and the remedy for each."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points

from tp_compile_pass import compat, compat_doctor
from tp_compile_pass.options import TPOptionError, TPOptions
from tp_compile_pass.switch import NAME

GROUP = "torch_dynamo_backends"
#: Dynamo's own. Layers compiled one by one come near it when each of them compiles anew.
USUAL_RECOMPILE_LIMIT = 8


@dataclass(frozen=True)
class Obstacle:
    """Something that defeats `tp_inductor` ("problem") or makes it hard to see that it is defeated ("warning"), and the
    one thing to do about it."""

    severity: str
    what: str
    advice: str


def obstacles() -> list[Obstacle]:
    """Everything that is found, problems first."""
    found = [*_registration(), *_torch(), *_compiler(), *_dynamo(), *_options()]
    return sorted(found, key=lambda obstacle: obstacle.severity)


def _registration() -> Iterator[Obstacle]:
    entries = list(entry_points(group=GROUP, name=NAME))
    if not entries:
        yield Obstacle(
            "problem",
            f"torch does not know {NAME}: the package is importable but not installed",
            "install it (`pip install .` in its checkout)",
        )
    elif len({entry.value for entry in entries}) > 1:
        values = ", ".join(sorted({entry.value for entry in entries}))
        yield Obstacle(
            "problem", f"the backend's name {NAME} is registered more than once ({values})", "uninstall all but one"
        )
    elif (error := _load_error(entries[0])) is not None:
        yield Obstacle("problem", f"the backend does not load: {error}", "reinstall the package next to this torch")


def _load_error(entry: EntryPoint) -> str | None:
    try:
        entry.load()
    except Exception as error:  # whatever an import may raise
        return f"{type(error).__name__}: {error}"
    return None


def _torch() -> Iterator[Obstacle]:
    newest = max(tuple(map(int, version.split(".")[:2])) for version in compat.CHECKED)
    if newest < compat.TORCH:
        yield Obstacle(
            "warning",
            f"this torch is newer than any that was checked ({', '.join(compat.CHECKED)})",
            'set TP_COMPILE_PASS_STRICT=1 once and compare with backend="inductor"',
        )


def _compiler() -> Iterator[Obstacle]:
    command = os.environ.get("CXX") or ("clang++" if sys.platform == "darwin" else "g++")
    if shutil.which(shlex.split(command)[0]) is None:
        yield Obstacle(
            "problem", f"Inductor needs a C++ compiler, and there is no {command}", "install one, or set CXX"
        )


def _dynamo() -> Iterator[Obstacle]:
    if compat_doctor.is_disabled():
        yield Obstacle(
            "problem",
            "torch.compile is switched off: everything runs eagerly",
            "unset TORCHDYNAMO_DISABLE and TORCH_COMPILE_DISABLE (and torch._dynamo.config.disable)",
        )
    stance, forced = compat_doctor.stance()
    if forced is not None:
        yield Obstacle(
            "problem",
            f"the compiler's stance forces the backend {forced} on every function, without mode, options or fullgraph",
            "take force_backend out of torch.compiler.set_stance",
        )
    elif stance in ("force_eager", "eager_on_recompile"):
        yield Obstacle(
            "problem" if stance == "force_eager" else "warning",
            f"the compiler's stance is {stance}",
            'torch.compiler.set_stance("default") where you want compiled code',
        )
    if overridden := compat_doctor.overridden_backends():
        yield Obstacle(
            "problem",
            f"TORCH_COMPILE_OVERRIDE_BACKENDS={overridden} gives graphs to other backends",
            "unset it",
        )
    if compat_doctor.overridden_inductor_config():
        yield Obstacle(
            "problem",
            "TORCH_COMPILE_OVERRIDE_INDUCTOR_CONFIGS is a TypeError with every backend but inductor",
            'unset it, and give the settings as options={…} to backend="tp_inductor"',
        )
    if compat_doctor.dynamo_setting("suppress_errors"):
        zero = os.environ.get("TORCHDYNAMO_SUPPRESS_ERRORS") == "0"
        yield Obstacle(
            "problem",
            "errors are suppressed: a graph that fails to compile, or that the verifier refuses, silently runs eagerly",
            "unset TORCHDYNAMO_SUPPRESS_ERRORS"
            + (
                " (torch takes any value, 0 as well, for yes)"
                if zero
                else " (and torch._dynamo.config.suppress_errors)"
            ),
        )
    if compat_doctor.dynamo_setting("caching_precompile"):
        yield Obstacle(
            "warning",
            "TORCH_CACHING_PRECOMPILE keys its cache on the source alone: code compiled by another backend is loaded",
            "give each backend a cache directory of its own (TORCHINDUCTOR_CACHE_DIR)",
        )
    limit = compat_doctor.dynamo_setting("recompile_limit", "cache_size_limit")
    if limit is not None and limit < USUAL_RECOMPILE_LIMIT:
        yield Obstacle(
            "warning",
            f"functions may compile only {limit} times, and run eagerly from then on",
            f"leave torch._dynamo.config.recompile_limit at {USUAL_RECOMPILE_LIMIT} or above, or set "
            "torch._dynamo.config.fail_on_recompile_limit_hit to hear of it",
        )


def _options() -> Iterator[Obstacle]:
    try:
        TPOptions.split(None)
    except TPOptionError as error:
        yield Obstacle("problem", f"every compilation will fail: {error}", "correct the variable, or unset it")
