"""The crash matrix with three members: each verb is broken at every step of each of them."""

from __future__ import annotations

from tests.crash import test_matrix as matrix

test_update = matrix.test_update
test_break = matrix.test_break
test_prune = matrix.test_prune
test_abort_hard = matrix.test_abort_hard
test_switching = matrix.test_switching
test_kill_minus_nine = matrix.test_kill_minus_nine_of_an_update_at_every_step
