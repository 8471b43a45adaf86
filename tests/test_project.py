"""The project hangs together: packaging, the same torch versions wherever they are named, no path of one machine."""

import ast
import re
import subprocess
from importlib.metadata import entry_points, version
from importlib.resources import files
from pathlib import Path

import pytest
import torch

import tp_compile_pass
from tp_compile_pass.compat import CHECKED

ROOT = Path(__file__).parent.parent


@pytest.mark.matrix
def test_torch_finds_the_backend_by_its_name():
    (entry,) = entry_points(group="torch_dynamo_backends", name="tp_inductor")
    assert entry.load() is tp_compile_pass.tp_inductor
    assert "tp_inductor" in torch._dynamo.list_backends()
    assert torch._dynamo.lookup_backend("tp_inductor") is tp_compile_pass.tp_inductor


def test_the_package_is_typed_and_knows_its_version():
    assert (files("tp_compile_pass") / "py.typed").is_file()
    assert version("tp-compile-pass") == tp_compile_pass.__version__


def test_every_place_names_the_same_torch_versions():
    assert {f"torch-{v}.txt" for v in CHECKED} == {p.name for p in (ROOT / "requirements").glob("torch-*")}
    assert _versions("Makefile", r"^VERSIONS := (.*)$") == set(CHECKED)
    assert _versions("noxfile.py", r"^TORCH = (.*)$") == set(CHECKED)
    assert _versions("docs/call-sites.md", r"^(\| row .*)$") == set(CHECKED)
    for v in CHECKED:
        assert (ROOT / "requirements" / f"torch-{v}.txt").read_text().split() == [f"torch=={v}"]


def _versions(file, pattern):
    return set(re.findall(r"\d+\.\d+\.\d+", re.search(pattern, (ROOT / file).read_text(), re.M)[1]))


def test_make_targets_that_the_documentation_names_exist():
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    named = {target for page in pages for target in re.findall(r"`?make ([a-z]+)\b`", page.read_text())}
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.M))
    assert {"demo", "test", "matrix", "lint"} <= targets
    assert named <= targets


def _committed():
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a git checkout")
    return [path for name in listed.stdout.split("\0") if name and (path := ROOT / name).is_file()]


def test_nothing_committed_belongs_to_one_machine():
    telling = re.compile(r"/wor[k]/|/roo[t]/|/hom[e]/\w|\.pyen[v]/|py[p]i\.org|pytho[n]hosted")
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in _committed()
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
        if telling.search(line)
    ]
    assert not found


def test_python_files_stay_short():
    long = [path.name for path in _committed() if path.suffix == ".py" and path.read_text().count("\n") > 500]
    assert not long


def private_torch(file):
    """The private names of torch that a Python file reaches for."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torch"):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Attribute):
            names = [ast.unparse(node)] if ast.unparse(node).startswith("torch.") else []
        else:
            continue
        yield from (name for name in names if any(re.match("_(?!_)", part) for part in name.split(".")))


def test_private_torch_apis_are_in_compat_alone():
    package = ROOT / "src" / "tp_compile_pass"
    files = [
        file for file in package.rglob("*.py") if not file.name.startswith("compat") and "catalogue" not in file.parts
    ]
    ops = "torch.ops._c10d_functional"  # an op's name is what a graph is made of
    found = {f"{file.name}: {name}" for file in files for name in private_torch(file) if not name.startswith(ops)}
    assert found == set()
    assert "torch._inductor.compile_fx" in set(private_torch(package / "compat_inductor.py"))
