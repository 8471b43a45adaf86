"""`diagnose()`: everything the doctor finds, as plain data, and as text."""

from __future__ import annotations

import json
import platform
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from tp_compile_pass import compat
from tp_compile_pass.doctor.environment import Obstacle, obstacles
from tp_compile_pass.doctor.frameworks import installed
from tp_compile_pass.doctor.known_problems import problems

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class KnownProblem:
    """A problem of this torch with `backend="inductor"`; `mended` where `tp_inductor` does away with it."""

    what: str
    mended: bool
    advice: str
    page: str


@dataclass(frozen=True)
class InstalledFramework:
    """A framework, its version, and how it is told to use `tp_inductor`."""

    name: str
    version: str
    how: str


@dataclass(frozen=True)
class Diagnosis:
    """What is installed, what is known of it, and what stands in the way."""

    python: str
    torch: str
    tp_compile_pass: str
    #: Whether exactly this torch release is one that the tests run on.
    torch_checked: bool
    backends: list[str]
    frameworks: list[InstalledFramework]
    known_problems: list[KnownProblem]
    obstacles: list[Obstacle]
    schema_version: int = SCHEMA_VERSION

    @property
    def healthy(self) -> bool:
        """Whether nothing keeps `tp_inductor` from working."""
        return not any(obstacle.severity == "problem" for obstacle in self.obstacles)

    def to_dict(self) -> dict[str, Any]:
        """The diagnosis as plain JSON values."""
        return {"healthy": self.healthy, **asdict(self)}

    def to_json(self, indent: int | None = 1) -> str:
        return json.dumps(self.to_dict(), indent=indent)

    def __str__(self) -> str:
        return "\n".join(_lines(self))


def diagnose() -> Diagnosis:
    """Looks at the process it is called in: call it in the program itself to have what that sets, too."""
    try:
        ours = version("tp-compile-pass")
    except PackageNotFoundError:
        ours = "not installed"
    release = torch.__version__.split("+")[0]
    return Diagnosis(
        python=platform.python_version(),
        torch=torch.__version__,
        tp_compile_pass=ours,
        torch_checked=release in compat.CHECKED,
        backends=sorted(torch.compiler.list_backends()),
        frameworks=[InstalledFramework(found.name, number, found.how) for found, number in installed()],
        known_problems=[
            KnownProblem(problem.what, problem.ours == "mended", problem.advice, f"docs/{problem.page}")
            for problem in problems((compat.TORCH[0], compat.TORCH[1]))
        ],
        obstacles=obstacles(),
    )


def _lines(found: Diagnosis) -> list[str]:
    tested = "tested" if found.torch_checked else f"tested are {', '.join(compat.CHECKED)}"
    lines = [
        f"tp_compile_pass {found.tp_compile_pass}, torch {found.torch} ({tested}), Python {found.python}",
        f"backends: {', '.join(found.backends)}",
        "",
        "Frameworks",
        *(f"  {framework.name} {framework.version}: {framework.how}" for framework in found.frameworks),
        *([] if found.frameworks else ['  none that we know: torch.compile(model, backend="tp_inductor")']),
        "",
        'What is known of tensor-parallel code on this torch with backend="inductor" (✔ tp_inductor mends it)',
        *(f"  {'✔' if p.mended else '·'} {p.what}{_then(p.advice)}  [{p.page}]" for p in found.known_problems),
        "",
    ]
    if not found.obstacles:
        return [*lines, "Nothing in this environment stands in the way."]
    lines.append("In this environment")
    for obstacle in found.obstacles:
        lines.append(f"  {obstacle.severity}: {obstacle.what}{_then(obstacle.advice)}")
    return lines


def _then(advice: str) -> str:
    return f" → {advice}" if advice else ""
