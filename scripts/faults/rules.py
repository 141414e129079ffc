"""The rules of the core, which `rules.rs` explains, and the tests that must fail without them.

A test is named by its kind and its place:

- `loom:`, `unit:` a test of the library, with or without loom;
- `it:` a test of `tests/it`;
- `py:` a file under `tests/python`, followed by options of pytest.
"""

RULES: dict[str, list[str]] = {
    "HoldHandlerLock": [
        "loom:flow::loom_tests::loom_two_owners_meet_at_one_handler",
        "it:p1_exclusive::an_instance_for_many_types_is_entered_by_one_thread_at_a_time",
        "it:p1_exclusive::an_instance_on_two_queues_is_entered_by_one_thread_at_a_time",
        "it:p1_exclusive::a_consumer_of_a_round_robin_queue_is_entered_by_one_thread_at_a_time",
        "it:p1_factory::an_instance_that_serves_all_partitions_is_entered_by_one_thread_at_a_time",
        "it:regressions::r07_on_idle_does_not_overlap_consume_with_a_custom_selector",
        "it:model::random_actions_keep_every_promise",
    ],
    "EndSuppression": [
        "loom:flow::loom_tests::loom_put_fills_a_batch_while_its_first_item_goes_to_linger",
        "it:lingering::a_batch_is_called_when_it_is_full_and_not_before",
    ],
    "SecondTypeEndsSuppression": [
        "loom:flow::loom_tests::loom_second_type_while_an_item_goes_to_linger",
        "it:lingering::a_second_type_in_a_partition_without_notifications_does_not_wait_for_the_first",
    ],
    "KeepLingering": [
        "it:lingering::changes::a_removed_handler_gets_what_lingers_and_nothing_later"
    ],
    "AwakeForDeadLetters": [
        "it:p2_dead_letters::letters_for_a_handler_that_is_inside_for_another_queue_are_kept_afterwards",
    ],
    "FlushEndsLinger": [
        "loom:flow::loom_tests::loom_flush_while_an_item_goes_to_linger",
        "it:lingering::a_flush_ends_the_wait",
    ],
    "SealedFirst": ["loom:flow::loom_tests::loom_seal_while_the_owner_takes"],
    "TakenBeforeUnlock": ["loom:flow::loom_tests::loom_second_put_while_the_owner_takes_the_first"],
    "WithdrawPlan": [
        "loom:flow::loom_tests::loom_second_put_while_the_owner_takes_the_first",
        "loom:control::loom_tests::loom_close_while_a_producer_adds_to_a_segment",
    ],
    "BudgetBit": ["loom:flow::loom_tests::loom_put_while_a_take_stops_at_its_budget"],
    "CheckBeforeSleep": [
        "loom:flow::loom_tests::loom_put_while_the_owner_goes_to_sleep",
        "loom:flow::loom_tests::loom_pressure_while_the_owner_goes_to_rest",
        "loom:flow::host_loom_tests::loom_put_while_a_sleep_times_out",
        "loom:flow::produce::many::loom_tests::loom_many_while_the_owner_goes_to_sleep",
    ],
    "KeepPressure": [
        "loom:flow::loom_tests::loom_pressure_while_the_owner_goes_to_rest",
        "it:p4_live::pressure_on_an_awake_thread_keeps_it_from_resting",
    ],
    "NotifyBehindWeighted": ["it:weighted::a_producer_waiting_behind_one_weighted_item_is_woken"],
    "SmallerPieces": ["it:weighted::lighter_producers_do_not_starve_a_weighted_item"],
    "TryNextGate": [
        "loom:flow::produce::many::loom_tests::loom_two_producers_of_many_meet_at_two_gates"
    ],
    "PutFence": [
        "loom:flow::loom_tests::loom_put_while_the_owner_goes_to_sleep",
        "loom:flow::loom_tests::loom_pressure_while_the_owner_goes_to_rest",
        "loom:flow::produce::many::loom_tests::loom_many_while_the_owner_goes_to_sleep",
    ],
    "RouteAfterTake": [
        "loom:flow::loom_tests::loom_put_while_the_owner_goes_to_sleep",
        "loom:flow::host_loom_tests::loom_attached_thread_flushes",
    ],
    "MarkMixed": [
        "loom:control::register::departure_loom_tests::loom_put_while_the_type_goes_and_another_comes",
        "unit:control::register::tests::"
        "an_item_of_a_type_that_has_gone_does_not_reach_the_next_type_of_its_partition",
        "loom:flow::call::loom_tests::loom_unknown_type_while_the_owner_takes",
        "it:p2_no_loss::items_without_a_handler_are_counted",
        "it:host::handlers_of_both_kinds_run_where_they_belong_in_any_partition",
    ],
    "TableVersion": [
        "loom:flow::route::type_table::loom_tests::loom_look_up_while_the_twins_follow_each_other"
    ],
    "KeyOfPlace": ["loom:flow::route::loom_tests::loom_look_up_while_the_place_changes_hands"],
    "ReturnHome": [
        "unit:control::register::tests::"
        "a_type_that_has_gone_comes_back_to_its_partition_while_items_of_others_wait",
    ],
    "WholeRound": [
        "unit:control::types::whereabouts_tests::"
        "a_type_is_forgotten_when_all_that_was_put_before_it_went_is_settled",
    ],
    "OnlyAtHome": [
        "unit:control::register::tests::"
        "an_item_that_was_put_before_its_type_came_is_not_delivered_from_another_partition",
    ],
    "StayAfterReturn": ["unit:control::types::tests::a_type_with_a_handler_again_does_not_go"],
    "GoWhenSettled": [
        "unit:control::types::tests::a_type_goes_when_its_partition_is_settled_up_to_its_removal",
        "unit:control::register::tests::a_type_stays_while_its_items_wait",
    ],
    "NotifyFlush": [
        "loom:flow::loom_tests::loom_flush_while_the_cycle_ends",
        "loom:flow::host_loom_tests::loom_attached_thread_flushes",
    ],
    "NotifyWaiting": [
        "loom:flow::partition::room::loom_tests::loom_stall_ends_while_a_producer_goes_to_wait",
        "loom:flow::loom_tests::loom_space_while_a_producer_goes_to_wait",
        "loom:flow::host_loom_tests::loom_attached_producer_waits_for_space",
        "loom:flow::produce::many::loom_tests::loom_space_while_a_producer_of_many_goes_to_wait",
        "loom:flow::produce::pending::loom_tests::loom_space_while_a_loop_begins_to_listen",
    ],
    "ListenFence": [
        "loom:flow::produce::pending::loom_tests::loom_space_while_a_loop_begins_to_listen"
    ],
    "NotifyClosed": [
        "loom:control::loom_tests::loom_close_while_a_producer_waits",
        "loom:flow::produce::pending::loom_tests::loom_close_while_a_loop_listens",
        "it:p4_live::a_close_wakes_waiting_producers",
        "it:regressions::r04_a_shutdown_delivers_accepted_items_and_frees_waiting_producers",
    ],
    "ClosedFlag": [
        "loom:control::loom_tests::loom_close_while_a_producer_puts",
        "loom:control::loom_tests::loom_close_while_a_handler_produces",
        "it:p2_no_loss::refused_items_are_counted_and_returned",
    ],
    "FinalCheck": [
        "unit:flow::partition::tests::a_closed_partition_is_finished_only_when_it_is_empty"
    ],
    "Bound": [
        "it:p5_bounded::exactly_buffer_size_items_fit",
        "py:core/promises/test_p5_bounded.py",
    ],
    "CountRefused": [
        "it:p2_no_loss::refused_items_are_counted_and_returned",
        "py:core/promises/test_p2_refusals.py",
    ],
    "CountFailed": ["it:p2_no_loss::a_failing_batch_counts_as_failed_and_the_next_is_handled"],
    "CountUnhandled": ["it:p2_no_loss::items_without_a_handler_are_counted"],
    "CutOff": ["it:p2_no_loss::a_shutdown_out_of_time_returns_the_number_of_abandoned_items"],
    "CatchPanic": ["it:p2_no_loss::a_failing_batch_counts_as_failed_and_the_next_is_handled"],
    "CatchDropPanic": [
        "it:p9_panicking_items::a_queue_outlives_items_that_panic_when_they_are_dropped"
    ],
    "RefuseReentrant": [
        "it:p9_clean_ends::a_produce_that_would_wait_for_its_own_thread_is_refused"
    ],
    "TakeOnlyWhenOwned": [
        "loom:flow::ownership::loom_rules::loom_two_threads_enter_while_a_partition_moves",
    ],
    "CompareExchange": ["loom:flow::ownership::loom_rules::loom_two_changes_of_one_owner_word"],
    "InsideBeforeCheck": [
        "loom:flow::ownership::loom_rules::loom_two_threads_enter_while_a_partition_moves"
    ],
    "MoverChecksInside": [
        "loom:flow::ownership::loom_rules::loom_two_threads_enter_while_a_partition_moves",
    ],
    "CompleteAtLeave": [
        "loom:flow::ownership::loom_rules::loom_two_threads_enter_while_a_partition_moves",
    ],
    "AssignWake": [
        "loom:flow::ownership::loom_rules::loom_move_while_the_owner_goes_to_sleep",
        "loom:flow::ownership::loom_tests::loom_move_while_the_owners_rest",
    ],
    "NotifyExpiry": ["it:p9_clean_ends::a_shutdown_returns_when_another_one_expires"],
    "TakeOver": [
        "it:p4_take_over::other_types_are_served_while_a_handler_hangs",
        "it:p4_take_over::other_types_are_served_while_on_idle_or_on_close_hangs",
        "it:p4_take_over::a_shutdown_delivers_all_but_the_items_of_a_handler_that_hangs",
    ],
    "LogApart": ["it:p9_balancers::a_log_that_hangs_or_panics_holds_up_no_balancer"],
    "DisarmFence": ["loom:threads::agenda::loom_tests::loom_turn_while_the_visits_end"],
    "SpareQuickWork": [
        "it:p4_slow_handlers::slow_handlers_leave_one_thread_to_the_quick_ones",
        "loom:flow::blocking::loom_tests::loom_two_slow_handlers_beside_quick_work",
    ],
    "RecallSlow": ["loom:flow::blocking::loom_tests::loom_two_slow_handlers_beside_quick_work"],
    "SlowInTurn": [
        "unit:flow::handler::slow_calls::tests::slow_calls_are_made_in_the_order_in_which_their_jobs_came"
    ],
    "DropConsumed": [
        "it:p2_failed_part::only_what_failed_is_tried_again_and_later_items_wait_for_it",
        "it:p2_failed_part::items_of_rows_are_cut_where_rows_failed",
        "py:core/handlers/test_batch_failed.py -k tried_again",
    ],
    "WaitForRetired": [
        "loom:flow::ownership::loom_tests::loom_remove_while_the_owner_calls",
        "it:p9_retirement::a_removal_waits_for_the_batch_in_flight",
        "it:model::random_actions_keep_every_promise",
    ],
    "ListAtLock": [
        "loom:flow::ownership::loom_rules::loom_remove_while_the_owner_lists_idle_handlers"
    ],
    "RecallType": [
        "loom:flow::ownership::loom_rules::loom_remove_while_the_owner_submits",
        "loom:flow::ownership::loom_rules::loom_replace_while_the_owner_submits",
        "it:p4_replaced_handlers::a_new_handler_gets_the_batch_that_the_old_one_failed",
    ],
    "RecallFailed": [
        "it:p4_replaced_handlers::"
        "a_batch_that_fails_while_its_handler_is_replaced_goes_to_the_new_one_without_delay",
        "it:p4_replaced_handlers::"
        "a_batch_that_fails_while_its_handler_is_removed_is_counted_without_delay",
    ],
    "TicketsAtRelease": ["loom:flow::loom_tests::loom_two_owners_meet_at_one_handler"],
    "AppendToLane": [
        "loom:flow::ownership::loom_rules::loom_new_owner_waits_for_the_job_in_flight",
        "it:model::random_actions_keep_every_promise",
    ],
    "FailedToHead": ["it:model::random_actions_keep_every_promise"],
    "ResultBit": ["loom:flow::ownership::loom_rules::loom_new_owner_waits_for_the_job_in_flight"],
    "ResultWake": ["loom:flow::ownership::loom_rules::loom_new_owner_waits_for_the_job_in_flight"],
    "StoppedTake": [
        "loom:flow::ownership::loom_rules::loom_new_owner_waits_for_the_job_in_flight",
        "loom:flow::ownership::loom_rules::loom_close_while_the_old_owner_has_a_job_in_flight",
    ],
    "AssignLanes": [
        "it:p4_held_up::a_batch_that_backs_off_is_tried_again_by_the_new_owner_of_its_partition"
    ],
    "MarkStalled": [
        "it:p4_stalled::a_type_that_hangs_leaves_the_room_of_its_partition_to_others",
        "it:p4_stalled::a_producer_that_waits_has_the_room_of_a_type_that_hangs",
        "py:core/event_loop/test_producers.py -k room_of_a_class_that_hangs",
    ],
    "LeaveForSlowCall": [
        "unit:control::supervisor::tests::a_thread_that_calls_a_slow_handler_leaves_its_partitions_before"
    ],
    "CheckWaits": ["it:p4_circles::a_handler_that_shuts_its_feeder_down_returns"],
    "HeldCounts": ["it:p4_held_up::items_that_wait_for_their_handler_count_against_the_bound"],
    "CompletedBehindLanes": ["loom:flow::loom_tests::loom_flush_while_the_cycle_ends"],
    "FinishWithoutLanes": [
        "it:p2_retry::a_batch_is_retried_up_to_the_limit_and_counts_once",
        "it:model::random_actions_keep_every_promise",
    ],
    "NoGrowthWhileClosing": ["loom:control::loom_tests::loom_close_while_a_type_is_added"],
    "TryBeforeDeadline": [
        "loom:flow::host_loom_tests::loom_shutdown_while_a_batch_waits_for_its_next_try",
        "unit:flow::turn::timing_tests::what_fails_just_before_the_deadline_has_failed",
    ],
    "AwakeForNews": [
        "loom:flow::host_loom_tests::"
        "loom_deadline_while_a_batch_of_a_closed_queue_waits_for_its_next_try",
        "loom:flow::host_loom_tests::loom_announced_deadline_while_a_batch_waits_for_its_next_try",
    ],
    "LeaveHostAtLock": [
        "loom:flow::host_loom_tests::loom_attached_owner_closes_a_handler_while_the_other_is_entered",
    ],
    # Failures of the original queue; failures 4 and 7 are in rows above.
    "GrowthKeepsOwners": [
        "it:regressions_of_moves::r01_growth_after_a_rebalance_strands_no_partition"
    ],
    "RebalanceWhenSaturated": [
        "it:regressions_of_moves::r03_the_balancer_runs_while_all_drain_threads_are_busy"
    ],
    "ShutdownFromHandlerReturns": ["it:regressions::r05_a_shutdown_from_a_handler_returns"],
    "TypesKeepPartitions": ["it:regressions::r06_growth_moves_no_type"],
    "ValidatePlan": ["it:regressions_of_moves::r08_a_plan_with_a_missing_thread_is_refused"],
    "IgnoreNoise": ["it:regressions_of_moves::r09_noise_moves_nothing"],
    "UsageCountsInFlight": ["it:regressions::r10_items_in_flight_count_as_used"],
    "StatsNeverWait": ["it:regressions::r11_a_snapshot_never_waits"],
    "SpreadForConsumers": ["it:regressions::r12_one_type_keeps_four_consumers_busy_concurrently"],
    "RememberNotification": [
        "loom:threads::loom_tests::loom_notify_while_a_step_goes_to_sleep",
        "unit:threads::pool::tests::a_notification_during_a_step_is_followed_by_another_step",
    ],
    "OneWorkerPerTask": ["loom:threads::loom_tests::loom_two_notifies_while_a_step_runs"],
    "PassOn": ["unit:threads::pool::tests::a_timer_fires_even_if_its_keeper_takes_a_long_step"],
    "Compensate": [
        "loom:threads::loom_tests::loom_a_worker_blocks_until_another_task_has_run",
        "unit:threads::pool::tests::a_blocked_worker_is_replaced_up_to_twice_the_size_and_the_surplus_leaves",
    ],
    "CompensateForLoop": ["it:p9_clean_ends::a_worker_whose_handler_works_elsewhere_is_replaced"],
    # Admission to a stage of a pipeline; the rules in Python are in `pipeline_support.mutants`.
    "LargeChunkAlone": [
        "unit:stages::tests::rows_bytes_and_turns_are_kept_whatever_comes",
        "py:pipeline/runner/test_gate.py -k empty_stage_admits_any_chunk",
    ],
    "StageBytes": ["unit:stages::tests::rows_bytes_and_turns_are_kept_whatever_comes"],
    "WorkerRows": ["unit:stages::tests::rows_bytes_and_turns_are_kept_whatever_comes"],
    "TurnAtTheGate": [
        "unit:stages::tests::rows_bytes_and_turns_are_kept_whatever_comes",
        "unit:stages::tests::a_chunk_that_waits_is_inside_before_its_thread_wakes",
    ],
    "PassWaitingWorker": ["unit:stages::tests::rows_bytes_and_turns_are_kept_whatever_comes"],
    "LeastHeldWorker": ["unit:stages::tests::rows_bytes_and_turns_are_kept_whatever_comes"],
    "ExitGuard": ["py:core/promises/test_p9_exit.py"],
    "ForkGeneration": ["py:core/promises/test_p9_fork.py"],
    "CheckSignals": ["py:core/promises/test_p9_signals.py"],
    "AbandonFutures": ["py:core/results/test_ends.py"],
    "SkipCancelled": ["py:core/results/test_cancel.py"],
}
