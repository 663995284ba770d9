"""docs/failover.md and the tests of what it promises match one to one."""

from __future__ import annotations

from tests.support.sentences import assert_there, numbered

_NESTED = "tests/btrfs/test_nested_live.py"
_BREAK, _STOPPED = "tests/failover/test_break.py", "tests/failover/test_interrupted.py"
_WRITERS, _PLACES = "tests/failover/test_writers.py", "tests/failover/test_places.py"
_SWITCHES, _FAILED = "tests/failover/test_switches.py", "tests/failover/test_failed.py"
_CONTRACT, _CYCLE = "tests/contract/test_switching.py", "tests/integration/test_life_cycle.py"
_BTRFS, _BLOCK = "tests/btrfs/test_failover.py", "tests/block/test_failover.py"
_ZFS, _CRASH = "tests/zfs/test_switching.py", "tests/crash/test_matrix.py"
_FIRST, _ENDS = "tests/service/test_first.py", "tests/service/test_ends.py"
_CONTROL, _FENCE = "tests/failover/test_control.py", "tests/contract/test_fence.py"
_SITES = "tests/integration/test_sites.py"
_COPIES, _SHOWN = "tests/contract/test_copies.py", "tests/integration/test_shown.py"

#: Sentence by sentence, the tests that fail where it does not hold.
TESTS: dict[str, list[tuple[str, str]]] = {
    "S1": [
        (_CONTRACT, "test_a_rollback_keeps_nothing_that_is_proven_superfluous"),
        (_CONTRACT, "test_a_rollback_keeps_an_overwritten_byte"),
        (_BTRFS, "test_what_an_abandoned_rollback_set_aside_is_kept_by_the_next"),
        ("tests/btrfs/test_power_cut.py", "test_what_only_the_log_holds_counts_as_a_change"),
    ],
    "S2": [
        (_SWITCHES, "test_no_acknowledged_line_is_lost"),
        (_CONTRACT, "test_a_rollback_loses_no_acknowledged_write_of_a_program"),
        (_ZFS, "test_no_acknowledged_line_is_lost_when_a_live_dataset_goes_back"),
        ("tests/zfs/test_switches.py", "test_no_acknowledged_line_is_lost"),
        ("tests/soak/test_soak.py", "test_a_seed"),
    ],
    "S3": [
        (_CONTRACT, "test_what_is_kept_never_takes_the_place_of_what_was_kept_before"),
        (_BTRFS, "test_two_losing_sides_of_one_name_are_both_kept"),
    ],
    "S4": [
        (_BTRFS, "test_the_view_exists_at_every_moment_of_a_break"),
        (_ZFS, "test_no_acknowledged_line_is_lost_when_a_live_dataset_goes_back"),
        (_ZFS, "test_files_that_landed_below_the_mountpoint_are_named"),
    ],
    "S5": [
        (_CRASH, "test_break"),
        (_CRASH, "test_switching"),
        (_CRASH, "test_abort_hard"),
        ("tests/crash/test_cuts.py", "test_a_power_cut_loses_nothing"),
        ("tests/crash/test_kills.py", "test_kill_minus_nine_under_a_program_that_writes"),
        (_BTRFS, "test_rollback_survives_a_crash_at_every_step"),
        (_BLOCK, "test_a_rollback_can_be_broken_at_each_step"),
        (_ZFS, "test_what_was_set_aside_is_put_back"),
    ],
    "B1": [
        (_BREAK, "test_without_source_and_catalogue"),
        (_BREAK, "test_with_a_catalogue_that_cannot_be_used"),
        (_STOPPED, "test_the_source_dies_during_its_restore_and_the_destination_is_needed"),
    ],
    "B2": [
        (_BREAK, "test_with_our_own_records_damaged"),
        (_BLOCK, "test_a_destination_with_a_damaged_root_record_is_promoted_and_goes_on"),
        (_ZFS, "test_promote_works_without_mirrords_own_properties"),
    ],
    "B3": [
        (_BREAK, "test_on_a_full_file_system"),
        (_BREAK, "test_a_resync_on_a_file_system_that_is_full_of_data"),
        (_BLOCK, "test_a_full_file_system_is_not_in_the_way_of_a_switch"),
        (_ZFS, "test_break_works_on_a_pool_without_a_free_block"),
        (_ZFS, "test_break_works_where_the_quota_is_reached"),
    ],
    "B4": [
        (_BREAK, "test_with_our_own_records_damaged"),
        (_BLOCK, "test_the_newest_intact_snapshot_is_promoted_when_the_shown_one_is_damaged"),
        (_ZFS, "test_promote_takes_the_newest_when_the_shown_one_is_gone"),
    ],
    "B5": [
        (_BREAK, "test_an_older_snapshot_keeps_the_newer"),
        (_CONTRACT, "test_an_older_snapshot_can_be_promoted_and_the_newer_stay"),
        (_ZFS, "test_promote_begins_as_an_older_snapshot_and_keeps_the_newer"),
    ],
    "B6": [
        (_FIRST, "test_twenty_breaks_in_a_row_while_runs_are_due_each_second"),
        (_FIRST, "test_a_break_from_a_process_beside_the_daemon"),
        (_FIRST, "test_nothing_begins_between_the_end_of_a_run_and_the_break"),
        (_FIRST, "test_a_verb_that_waits_for_its_turn_is_not_begun"),
    ],
    "B7": [(_BREAK, "test_a_break_that_fails_is_not_done_later")],
    "B8": [
        (_COPIES, "test_a_writable_copy_leaves_the_mirror_as_it_is"),
        (_COPIES, "test_a_copy_outlives_a_break_and_what_is_its_own_is_not_removed"),
    ],
    "R1": [
        (_BTRFS, "test_divergence_names_the_files_and_leaves_no_trace"),
        (_WRITERS, "test_a_plan_names_what_is_lost_and_who_writes"),
        (_SWITCHES, "test_no_acknowledged_line_is_lost"),
    ],
    "R2": [
        (_STOPPED, "test_a_lost_source_whose_restore_was_interrupted"),
        (_STOPPED, "test_a_source_that_is_lost_again_during_its_restore_is_created_again"),
        ("tests/integration/test_restore.py", "test_restore_all_creates_a_lost_source_again"),
    ],
    "R3": [
        (_STOPPED, "test_the_source_dies_during_its_restore_and_the_destination_is_needed"),
    ],
    "R4": [
        (_PLACES, "test_each_reason_has_a_message_and_nothing_is_made"),
        (_PLACES, "test_an_interrupted_restore_does_not_continue_below_a_mount_point"),
    ],
    "P1": [
        (_SWITCHES, "test_no_acknowledged_line_is_lost"),
        (_CYCLE, "test_reverse_of_a_working_mirror_carries_the_last_changes_first"),
    ],
    "P2": [
        (_CONTRACT, "test_a_frozen_volume_takes_no_write_until_it_is_thawed"),
        (_ZFS, "test_a_freeze_stops_every_write_and_ends_with_its_process"),
        (_SWITCHES, "test_no_acknowledged_line_is_lost"),
    ],
    "P3": [
        (_CONTRACT, "test_a_freeze_ends_with_a_process_that_is_killed"),
        (_FAILED, "test_a_freeze_that_ends_early_gives_the_reverse_up"),
    ],
    "P4": [(_STOPPED, "test_a_planned_reverse_that_had_switched_nothing_is_given_up")],
    "V1": [(_CYCLE, "test_reverse_after_a_break_and_back_again")],
    "V2": [
        (_BREAK, "test_a_reverse_takes_nested_subvolumes_along"),
        (_NESTED, "test_reverse_after_a_break_keeps_the_source_with_all_of_it"),
    ],
    "V3": [(_STOPPED, "test_work_at_both_ends_after_half_a_reverse_is_kept")],
    "W1": [(_WRITERS, "test_an_open_file_refuses_a_switch_and_with_force_nothing_is_lost")],
    "W2": [
        (_WRITERS, "test_an_open_file_refuses_a_switch_and_with_force_nothing_is_lost"),
        (_WRITERS, "test_what_is_written_after_a_forced_reverse_is_kept_and_said"),
        (_ZFS, "test_a_freeze_stops_every_write_and_ends_with_its_process"),
    ],
    "W3": [(_WRITERS, "test_a_mapping_without_a_descriptor_counts_as_open")],
    "W4": [(_WRITERS, "test_an_open_file_refuses_a_switch_and_with_force_nothing_is_lost")],
    "W5": [(_CONTRACT, "test_a_rollback_loses_no_acknowledged_write_of_a_program")],
    "W6": [
        (_BTRFS, "test_without_cap_sys_ptrace_a_rollback_keeps_the_volume"),
        ("tests/service/test_unit_file.py", "test_open_files_are_seen_with_these_capabilities"),
    ],
    "I1": [(_STOPPED, "test_without_later_work_the_next_command_finishes_it")],
    "I2": [
        (_STOPPED, "test_later_work_stops_an_interrupted_verb"),
        (_ENDS, "test_an_operation_that_waits_for_a_decision_is_not_tried_each_second"),
    ],
    "I3": [(_STOPPED, "test_later_work_stops_an_interrupted_verb")],
    "I4": [
        (_STOPPED, "test_later_work_stops_an_interrupted_verb"),
        (_CONTRACT, "test_what_was_live_can_be_put_back"),
    ],
    "I5": [(_FAILED, "test_a_switch_that_fails_before_it_switched_leaves_all_as_it_was")],
    "I6": [(_WRITERS, "test_reading_files_counts_as_a_change_where_access_times_are_kept")],
    "C1": [(_STOPPED, "test_a_catalogue_that_is_lost_between_any_two_verbs")],
    "C2": [(_STOPPED, "test_a_catalogue_of_before_is_not_obeyed")],
    "E1": [(_CONTROL, "test_each_change_of_roles_begins_an_epoch_at_both_ends")],
    "E2": [
        (_FENCE, "test_nothing_is_changed_in_an_epoch_that_is_over"),
        (_CONTROL, "test_a_verb_at_work_is_fenced_out_by_a_takeover"),
    ],
    "E3": [
        (_CONTROL, "test_another_controller_changes_nothing"),
        (_CONTROL, "test_a_takeover_relieves_the_controller"),
    ],
    "E4": [
        (_CONTROL, "test_an_end_that_was_put_back_is_brought_up"),
        (_CONTROL, "test_no_verb_needs_the_catalogue"),
        (_CONTROL, "test_a_catalogue_of_an_earlier_time_does_not_turn_a_mirror"),
        (_CONTROL, "test_a_catalogue_and_a_destination_of_an_earlier_time"),
    ],
    "E5": [(_CONTROL, "test_ends_that_contradict_each_other_wait_for_the_owner")],
    "E6": [(_CONTROL, "test_a_mirror_is_adopted_after_its_controller_was_lost")],
    "C3": [
        (_SITES, "test_a_lost_catalogue_does_not_turn_a_reversed_mirror_back"),
        (_SITES, "test_the_owner_says_which_site_is_the_source_where_nothing_else_does"),
    ],
    "U1": [(_STOPPED, "test_another_volume_in_the_place_of_the_source_is_not_mirrored")],
    "U2": [
        (_PLACES, "test_each_reason_has_a_message_and_nothing_is_made"),
        (_SHOWN, "test_a_source_that_is_gone_is_named_and_not_its_snapshots"),
    ],
    "U3": [
        (_SHOWN, "test_an_older_disk_at_the_destination_shows_its_own_age"),
        (_ENDS, "test_an_older_disk_is_found_when_it_is_mounted_and_the_right_one_too"),
    ],
    "U4": [(_ZFS, "test_a_source_that_is_not_mounted_is_refused")],
    "U5": [(_SHOWN, "test_another_live_volume_in_the_place_of_the_destination_is_not_the_copy")],
    "F1": [
        (_BREAK, "test_on_a_full_file_system"),
        (_BREAK, "test_a_resync_on_a_file_system_that_is_full_of_data"),
        (_BLOCK, "test_a_full_file_system_is_not_in_the_way_of_a_switch"),
    ],
    "F2": [
        (_BREAK, "test_on_a_full_file_system"),
        (_BREAK, "test_with_a_run_folder_in_which_no_lock_can_be_created"),
    ],
    "F3": [
        (_BLOCK, "test_a_destination_with_a_damaged_root_record_is_promoted_and_goes_on"),
        (_BLOCK, "test_no_old_record_stands_in_for_that_of_a_live_volume"),
    ],
}


def test_each_sentence_has_its_tests() -> None:
    assert sorted(numbered("docs/failover.md")) == sorted(TESTS)
    for tests in TESTS.values():
        assert tests
        assert_there(tests)
