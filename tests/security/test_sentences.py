"""docs/security.md and the tests that try to break it match one to one."""

from __future__ import annotations

from tests.security import (
    test_append_only,
    test_bounds,
    test_hostile,
    test_pause,
    test_secrets,
    test_sessions,
    test_streams,
    test_subtree,
)
from tests.security.sentences import MARKED
from tests.support.sentences import assert_there, numbered

HERE = (
    test_append_only,
    test_bounds,
    test_hostile,
    test_pause,
    test_secrets,
    test_sessions,
    test_streams,
    test_subtree,
)

_FAILURES, _SESSION = "tests/transport/test_failures.py", "tests/link/test_session.py"
_TLS, _PKI = "tests/transport/test_tls.py", "tests/transport/test_pki.py"
_CONFINED = "tests/btrfs/test_confined.py"
_RECORDS, _TOKENS = "tests/zfs/test_records.py", "tests/zfs/test_tokens.py"
#: Sentences that other tests attack.
ELSEWHERE: dict[str, list[tuple[str, str]]] = {
    "Z1": [
        (_RECORDS, "test_a_changed_stream_never_ends_well"),
        (_RECORDS, "test_a_length_is_not_believed_although_its_checksum_is_right"),
        (_RECORDS, "test_nothing_of_an_end_record_is_passed_even_byte_by_byte"),
    ],
    "Z2": [(_RECORDS, "test_a_package_and_what_follows_an_end_are_refused")],
    "Z3": [
        (_TOKENS, "test_a_token_for_something_else_is_never_sent_from"),
        (_TOKENS, "test_what_is_wrong_with_a_token_is_said"),
    ],
    "Z4": [
        (
            "tests/zfs/test_on_machine.py",
            "test_an_encrypted_dataset_is_mirrored_without_its_key",
        )
    ],
    "Z5": [
        (
            "tests/zfs/test_delegation.py",
            "test_a_user_mirrors_with_the_listed_permissions_and_nothing_else",
        )
    ],
    "F9": [
        (_CONFINED, "test_other_file_systems_can_be_unmounted_while_a_receive_runs"),
        (_CONFINED, "test_what_the_program_leaves_beside_its_snapshot_counts_for_nothing"),
    ],
    "K4": [
        (_FAILURES, "test_unknown"),
        (_FAILURES, "test_other_than_the_pinned_one"),
        (_FAILURES, "test_nobody_logs_in_before_the_host_key_is_known"),
    ],
    "L3": [
        (_SESSION, "test_a_silent_peer_is_noticed"),
        (_SESSION, "test_single_bytes_do_not_keep_a_session_alive"),
    ],
    "T1": [
        (_TLS, "test_a_client_with_another_certificate_is_told_and_the_right_one_gets_in"),
        (_TLS, "test_a_client_without_a_certificate_is_turned_away"),
        (_TLS, "test_a_listener_with_another_certificate_gets_no_byte"),
    ],
    "T2": [(_TLS, "test_only_tls_1_3")],
    "T3": [
        (_TLS, "test_a_valid_client_connects_among_garbage_and_silent_connections"),
        (_TLS, "test_a_handshake_without_end_is_cut"),
    ],
    "T4": [
        (_TLS, "test_a_changed_byte_ends_it"),
        (_TLS, "test_an_announced_end_is_an_end_and_a_cut_is_an_error"),
    ],
    "T5": [(_TLS, "test_the_key_needs_no_file_and_leaves_no_descriptor")],
    "T6": [(_TLS, "test_a_certificate_that_the_peers_key_signed_is_not_the_peers")],
    "P1": [
        (_PKI, "test_a_peer_cannot_pose_as_the_listening_host"),
        (_PKI, "test_a_peer_cannot_issue_certificates"),
        (_PKI, "test_the_listening_hosts_certificate_is_no_peers"),
    ],
    "P2": [(_PKI, "test_deleting_the_file_shuts_out_and_ends_what_runs")],
    "P3": [(_PKI, "test_other_rules_end_what_runs_by_the_old_ones")],
    "P4": [
        (_PKI, "test_rules_are_read_as_they_were_written"),
        (_PKI, "test_what_cannot_be_issued"),
    ],
    "P5": [(_PKI, "test_a_wrong_file_lets_nobody_in_and_keeps_nobody_out")],
    "P6": [(_PKI, "test_a_pinned_certificate_of_the_listening_host")],
    "P7": [(_PKI, "test_bad_bundles")],
}


def test_each_sentence_is_attacked_and_each_attack_has_a_sentence() -> None:
    names = numbered("docs/security.md")
    assert not MARKED.keys() & ELSEWHERE.keys()
    assert sorted(names) == sorted([*MARKED, *ELSEWHERE])


def test_the_attacks_are_there() -> None:
    here = {name for module in HERE for name in vars(module) if name.startswith("test_")}
    assert {name for marked in MARKED.values() for name in marked} <= here
    for tests in ELSEWHERE.values():
        assert_there(tests)
