"""The doctor: what defeats us is found and named with its remedy, what is healthy is not, and scripts can read it."""

import json
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from tp_compile_pass import compat, compat_doctor
from tp_compile_pass.cli import app
from tp_compile_pass.doctor import diagnose, environment, frameworks, known_problems
from tp_compile_pass.options import ENV_PREFIX

pytestmark = pytest.mark.matrix

DOCS = Path(__file__).parent.parent / "docs"


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch):
    """None of the settings that the doctor would find."""
    monkeypatch.setenv("CXX", "true")
    for name in ("TORCHDYNAMO_DISABLE", "TORCH_COMPILE_OVERRIDE_INDUCTOR_CONFIGS", "TORCHDYNAMO_SUPPRESS_ERRORS"):
        monkeypatch.delenv(name, raising=False)


def found():
    return [(obstacle.severity, obstacle.what, obstacle.advice) for obstacle in environment.obstacles()]


def only():
    (obstacle,) = environment.obstacles()
    return obstacle


def test_nothing_is_found_where_nothing_is_wrong():
    assert found() == []
    assert diagnose().healthy
    assert "Nothing in this environment stands in the way" in str(diagnose())


def test_it_says_what_is_installed(monkeypatch):
    monkeypatch.setattr(frameworks, "version", {"accelerate": "1.15.0"}.__getitem__)
    monkeypatch.setattr(frameworks, "PackageNotFoundError", KeyError)
    diagnosis = diagnose()
    assert diagnosis.torch == torch.__version__
    assert diagnosis.torch_checked is (torch.__version__.split("+")[0] in compat.CHECKED)
    assert "tp_inductor" in diagnosis.backends
    assert [(f.name, f.version) for f in diagnosis.frameworks] == [("accelerate", "1.15.0")]
    assert "accelerate 1.15.0: import tp_compile_pass.integrations.accelerate" in str(diagnosis)


@pytest.mark.parametrize("variable", ["TORCHDYNAMO_DISABLE", "config"])
def test_disabled(monkeypatch, variable):
    if variable != "config":
        monkeypatch.setenv(variable, "1")
    with torch._dynamo.config.patch(disable=variable == "config"):
        assert only().severity == "problem" and "TORCHDYNAMO_DISABLE" in only().advice
        assert not diagnose().healthy


def test_suppressed_errors(monkeypatch):
    with torch._dynamo.config.patch(suppress_errors=True):
        assert "silently runs eagerly" in only().what and "config.suppress_errors" in only().advice
        monkeypatch.setenv("TORCHDYNAMO_SUPPRESS_ERRORS", "0")  # which torch takes for yes
        assert "0 as well" in only().advice


def test_precompile_cache():
    if not hasattr(torch._dynamo.config, "caching_precompile"):
        pytest.skip("torch 2.5 and 2.6 have no precompile cache")
    with torch._dynamo.config.patch(caching_precompile=True):
        assert only().severity == "warning" and "TORCHINDUCTOR_CACHE_DIR" in only().advice
        assert diagnose().healthy


def test_recompile_limit():
    name = "recompile_limit" if hasattr(torch._dynamo.config, "recompile_limit") else "cache_size_limit"
    with torch._dynamo.config.patch({name: 2}):
        assert only().severity == "warning" and "only 2 times" in only().what


@pytest.mark.parametrize(
    ("stance", "severity"),
    [({"stance": "force_eager"}, "problem"), ({"stance": "eager_on_recompile"}, "warning"), ({}, None)],
)
def test_stance(stance, severity):
    if not hasattr(torch.compiler, "set_stance"):
        pytest.skip("torch 2.5 has no stances")
    with torch.compiler.set_stance(**(stance or {"stance": "default"})):
        assert [obstacle[0] for obstacle in found()] == ([severity] if severity else [])


def test_stance_that_forces_a_backend():
    if not hasattr(torch.compiler, "set_stance") or not hasattr(torch._dynamo.eval_frame._stance, "backend"):
        pytest.skip("no stance of this torch forces a backend")
    with torch.compiler.set_stance(force_backend="eager"):
        assert "forces the backend eager" in only().what


def test_overrides_for_debugging(monkeypatch):
    monkeypatch.setenv("TORCH_COMPILE_OVERRIDE_INDUCTOR_CONFIGS", "0:max_autotune=True")
    assert "options=" in only().advice
    monkeypatch.setattr(compat_doctor, "overridden_backends", lambda: "0:eager")
    assert [obstacle[0] for obstacle in found()] == ["problem", "problem"]


@pytest.mark.parametrize("variable", ["STRIT", "OVERLAP"])
def test_wrong_options_in_the_environment(monkeypatch, variable):
    monkeypatch.setenv(ENV_PREFIX + variable, "perhaps")
    assert only().severity == "problem" and ENV_PREFIX + variable in only().what


def test_no_compiler(monkeypatch):
    monkeypatch.setenv("CXX", "/no/such/c++ -m64")
    assert "needs a C++ compiler" in only().what


def entry(value):
    return EntryPoint("tp_inductor", value, environment.GROUP)


@pytest.mark.parametrize(
    ("entries", "what"),
    [
        ([], "not installed"),
        ([entry("tp_compile_pass.backend:tp_inductor"), entry("another.backend:tp_inductor")], "more than once"),
        ([entry("tp_compile_pass.gone:tp_inductor")], "does not load: ModuleNotFoundError"),
        ([entry("tp_compile_pass.backend:tp_inductor")] * 2, None),  # the same, found twice on the path
    ],
)
def test_registration(monkeypatch, entries, what):
    monkeypatch.setattr(environment, "entry_points", lambda **_: entries)
    assert (what in only().what) if what else found() == []


def test_a_torch_that_was_not_checked(monkeypatch):
    monkeypatch.setattr(compat, "TORCH", (99, 1))
    assert only().severity == "warning" and "newer than any" in only().what


def test_known_problems_are_those_of_this_torch():
    listed = diagnose().known_problems
    assert [problem.what for problem in listed] == [p.what for p in known_problems.problems(compat.TORCH)]
    assert any("Work.wait()" in problem.what and problem.mended for problem in listed)


def test_the_table_of_problems():
    for problem in known_problems.PROBLEMS:
        assert problem.first < problem.gone
        assert (DOCS / problem.page).is_file()
        assert bool(problem.advice) == (problem.ours == "not mended")
    for version in [tuple(map(int, v.split(".")[:2])) for v in compat.CHECKED]:
        names = [problem.what for problem in known_problems.problems(version)]
        assert len(names) == len(set(names)) > 5


def test_command(monkeypatch):
    run = CliRunner().invoke(app, ["doctor"])
    assert run.exit_code == 0 and torch.__version__ in run.output
    monkeypatch.setenv("TORCHDYNAMO_DISABLE", "1")
    run = CliRunner().invoke(app, ["doctor", "--json"])
    values = json.loads(run.output)
    assert run.exit_code == 1 and values["healthy"] is False
    assert values["obstacles"] == [vars(obstacle) for obstacle in diagnose().obstacles]
