"""docs/frameworks.md shows what the tests of the frameworks found, at the versions that are pinned for them."""

import re
from pathlib import Path

import pytest
from tests.frameworks import results
from tests.frameworks.cases import CASES

from tp_compile_pass.doctor.frameworks import FRAMEWORKS

ROOT = Path(__file__).parent.parent
PINS = {path.stem.removeprefix("frameworks-"): path for path in (ROOT / "requirements").glob("frameworks-*.txt")}


def test_the_table_is_that_of_the_results():
    assert results.BEGIN + results.table() + results.END in results.PAGE.read_text()


def test_results_are_of_cases_at_pinned_versions():
    pinned = {tuple(line.split("==")) for path in PINS.values() for line in path.read_text().split() if "==" in line}
    stored = results.stored()
    assert stored.keys() <= {case.name for case in CASES}
    for case in CASES:
        if found := stored.get(case.name):
            assert {(case.package, found.version), ("torch", found.torch)} <= pinned


def test_every_group_of_pins_has_its_session():
    groups = re.search(r"^FRAMEWORKS = \((.*)\)$", (ROOT / "noxfile.py").read_text(), re.M)[1]
    assert set(re.findall(r'"([\w-]+)"', groups)) == set(PINS)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_case_is_an_example_and_known_to_the_doctor(case):
    text = (ROOT / "examples" / f"{case.example}.py").read_text()
    assert re.search(rf"^def {case.function}\(backend: str", text, re.M)
    assert case.framework in {framework.name for framework in FRAMEWORKS}


def test_the_page_has_the_line_that_each_case_tried():
    page = results.PAGE.read_text().split(results.BEGIN)[0]
    for case in CASES:
        assert all(word in page for word in re.findall(r"tp_compile_pass[.\w]+|\w+\(|backend tp_inductor", case.how))
