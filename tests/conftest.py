"""Fixtures that every test may use."""

import pytest

from tp_compile_pass.testing import RankPool


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
