"""Fixtures of the capture tests."""

import pytest

from tp_compile_pass.testing import RankPool, deferred


@pytest.fixture(scope="module")
def on_deferred():
    """Two ranks whose collectives have not even started before they are waited for."""
    with RankPool(2, "deferred", setup=deferred.register) as pool:
        yield pool
