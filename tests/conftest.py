"""Fixtures that every test may use."""

import pytest

import findings
from findings import findings_fail_on_ranks  # noqa: F401  # a fixture
from tp_compile_pass.testing import RankPool


def pytest_configure(config):
    config.addinivalue_line("filterwarnings", findings.FILTER)


@pytest.fixture(scope="module")
def ranks2():
    """Two gloo ranks, started once per module."""
    with RankPool(2) as pool:
        yield pool


@pytest.fixture(scope="module")
def ranks4():
    """Four gloo ranks, started once per module."""
    with RankPool(4) as pool:
        yield pool
