"""Where the tests of the frameworks leave their results."""

import os

import pytest

from .results import store


@pytest.fixture(scope="session")
def results():
    """Takes the results; TPCP_STORE_RESULTS=1 has them stored and shown in the documentation."""
    found = []
    yield found
    if os.environ.get("TPCP_STORE_RESULTS") == "1" and found:
        store(found)
