"""No test passes over a finding of the verifier: `conftest.py` puts this in front of the whole suite.

A finding that is an error fails its compilation anyway. Here every other becomes an exception as well, in the test's
process and on the ranks of each pool, unless the test catches the warning (`pytest.warns`, `warnings.catch_warnings`)
or switches it off: then it says that it expects one.
"""

import functools
import warnings

import pytest

from tp_compile_pass.testing import RankPool
from tp_compile_pass.verify.check import VerifyWarning

FILTER = f"error::{VerifyWarning.__module__}.{VerifyWarning.__qualname__}"


def on_a_rank(setup):
    """What a rank of a pool does first."""
    warnings.filterwarnings("error", category=VerifyWarning)
    if setup is not None:
        setup()


@pytest.fixture(scope="session", autouse=True)
def findings_fail_on_ranks():
    """Lets every pool of ranks that a test starts treat findings as exceptions."""
    original = RankPool.__init__

    @functools.wraps(original)
    def init(self, *args, setup=None, **kwargs):
        original(self, *args, setup=functools.partial(on_a_rank, setup), **kwargs)

    RankPool.__init__ = init
    yield
    RankPool.__init__ = original
