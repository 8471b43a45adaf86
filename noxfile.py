"""`make matrix`: the tests that depend on the torch version (marker `matrix`), on each supported version.
`make frameworks`: the tests that run other people's frameworks (marker `frameworks`), at the versions pinned for them.

An environment per version takes gigabytes, so these lie outside the checkout, are shared by all checkouts of a machine
and hold other people's packages only. The package itself is built and installed into this checkout's `build/`.
"""

import os
import shutil
from pathlib import Path

import nox

TORCH = ("2.5.1", "2.6.0", "2.9.1", "2.13.0", "2.15.0")
#: Frameworks that can be installed together, each group by a file in `requirements/`.
FRAMEWORKS = ("main", "torchtitan", "torchtitan-spmd", "torchtune", "automodel", "litgpt")

nox.options.envdir = os.environ.get("TPCP_NOX_DIR") or Path.home() / ".cache" / "tp_compile_pass" / "nox"


@nox.session(venv_backend="venv", reuse_venv=True)
@nox.parametrize("torch", TORCH)
def matrix(session: nox.Session, torch: str) -> None:
    """Arguments after `--` go to pytest in place of `-m matrix`."""
    run_tests(session, f"torch-{torch}", Path("build/matrix", torch), session.posargs or ["-m", "matrix"])


@nox.session(venv_backend="venv", reuse_venv=True)
@nox.parametrize("group", FRAMEWORKS)
def frameworks(session: nox.Session, group: str) -> None:
    """Arguments after `--` go to pytest as well, `-k DeepSpeed` say."""
    arguments = ["-m", "frameworks", "tests/frameworks", *session.posargs]
    run_tests(session, f"frameworks-{group}", Path("build/frameworks", group), arguments)


def run_tests(session: nox.Session, requirements: str, target: Path, arguments: list[str]) -> None:
    """Runs pytest with `arguments`, on what `requirements/` names and this package, which goes into `target`."""
    project = nox.project.load_toml("pyproject.toml")["project"]
    libraries = [*project["dependencies"], *project["optional-dependencies"]["test"]]
    # The requirements decide on torch's version: a machine-wide cap on it must not. The rest of pip's setup holds.
    unconstrained = {"PIP_CONSTRAINT": os.devnull}
    session.install("-r", f"requirements/{requirements}.txt", *libraries, env=unconstrained)

    package = target.resolve()
    for stale in (package, Path("build/lib")):  # setuptools would pack modules that are gone from src/
        shutil.rmtree(stale, ignore_errors=True)
    session.install("--quiet", "--no-deps", "--target", str(package), ".")
    path = os.pathsep.join([str(package / "bin"), session.bin, os.environ["PATH"]])
    session.run("python", "-m", "pytest", *arguments, env={"PYTHONPATH": str(package), "PATH": path})
