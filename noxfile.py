"""`make matrix`: the tests that depend on the torch version (marker `matrix`), on each supported version.

An environment per version takes gigabytes, so these lie outside the checkout, are shared by all checkouts of a machine
and hold other people's packages only. The package itself is built and installed into this checkout's `build/matrix/`.
"""

import os
import shutil
from pathlib import Path

import nox

TORCH = ("2.5.1", "2.6.0", "2.9.1", "2.13.0", "2.15.0")

nox.options.envdir = os.environ.get("TPCP_NOX_DIR") or Path.home() / ".cache" / "tp_compile_pass" / "nox"


@nox.session(venv_backend="venv", reuse_venv=True)
@nox.parametrize("torch", TORCH)
def matrix(session: nox.Session, torch: str) -> None:
    """Arguments after `--` go to pytest in place of `-m matrix`."""
    project = nox.project.load_toml("pyproject.toml")["project"]
    libraries = [*project["dependencies"], *project["optional-dependencies"]["test"]]
    # The matrix decides on torch's version: a machine-wide cap on it must not. Everything else of pip's setup holds.
    unconstrained = {"PIP_CONSTRAINT": os.devnull}
    session.install("-r", f"requirements/torch-{torch}.txt", *libraries, env=unconstrained)

    package = Path("build/matrix", torch).resolve()
    for stale in (package, Path("build/lib")):  # setuptools would pack modules that are gone from src/
        shutil.rmtree(stale, ignore_errors=True)
    session.install("--quiet", "--no-deps", "--target", str(package), ".")
    path = os.pathsep.join([str(package / "bin"), session.bin, os.environ["PATH"]])
    session.run(
        "python", "-m", "pytest", *(session.posargs or ["-m", "matrix"]), env={"PYTHONPATH": str(package), "PATH": path}
    )
