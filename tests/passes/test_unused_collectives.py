"""A collective whose result nothing reads goes where the user says that it may."""

import pytest
from small_win_programs import ignored, ignored_after_use
from small_wins import count, like_eager, ranks  # noqa: F401

from tp_compile_pass.passes.unused_collectives import KEPT

pytestmark = pytest.mark.matrix


@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("fn", [ignored, ignored_after_use], ids=lambda fn: fn.__name__)
def test_dropped_on_the_users_word(ranks, fn, training):  # noqa: F811
    for allowed in (True, False):
        options = {"tp.drop_unused": allowed}
        for ops, applied, skipped in ranks.run(like_eager, fn, "unused_collectives", options, training):
            assert count(ops, "all_reduce") == (0 if allowed else 1,), ops
            assert (applied, skipped) == (([fn.__name__], []) if allowed else ([], [KEPT]))
