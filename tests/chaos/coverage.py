"""Which tests prove what: the 40 failure tests of architecture.md §4 and the 37 faults of trouble.md.

An entry names test functions. What stands in ``instead`` says what they do not cover, and why. ``make chaos`` prints
both lists with their results; ``test_coverage.py`` checks that every test that is named exists.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["ARCHITECTURE", "TROUBLE", "Entry"]


@dataclass(frozen=True)
class Entry:
    """One fault. ``tests`` are node ids without parameters."""

    fault: str
    tests: tuple[str, ...] = ()
    instead: str = ""


def _entry(fault: str, tests: str, instead: str = "") -> Entry:
    """``tests`` is a text of folders, files and functions: ``folder/file: function function; file: function``."""
    named = []
    for part in filter(None, map(str.strip, tests.split(";"))):
        file, _, functions = part.partition(":")
        named += [f"tests/{_FILES.get(file, file)}.py::test_{function}" for function in functions.split()]
    return Entry(fault, tuple(named), instead)


_FILES = {
    "processes": "chaos/test_processes",
    "requests": "chaos/test_requests",
    "surroundings": "chaos/test_surroundings",
    "death": "process/test_death",
    "drain": "process/test_drain",
    "admission": "process/test_admission",
    "isolation": "process/test_isolation",
    "http": "process/test_body_http",
    "wire": "process/test_wire_hostile",
    "leaks": "process/test_leaks",
    "trouble": "contract/test_trouble",
    "early": "process/test_early_answers",
    "nginx": "process/test_nginx",
    "metrics": "process/test_metrics",
    "secrets": "process/test_secrets",
    "decisions": "contract/test_decisions",
    "edges": "contract/test_decisions_edges",
}

ARCHITECTURE: Mapping[int, Entry] = {
    1: _entry(
        "SIGKILL of a web worker with jobs in flight",
        """processes: 20_times_sigkill_of_the_worker_whose_job_runs;
        death: 20_times_sigkill_of_a_web_worker_under_load
        sigkill_of_a_worker_with_jobs_in_flight_skips_its_queued_jobs_and_spares_the_other_worker
        a_request_head_without_its_body_survives_a_killed_neighbour""",
    ),
    2: _entry(
        "SIGKILL of all web workers, 20 times",
        """processes: 20_times_sigkill_of_all_web_workers_under_load;
        death: sigkill_of_all_workers_frees_the_slots_of_queued_requests_within_a_second""",
    ),
    3: _entry(
        "SIGKILL of the arbiter",
        """processes: 10_times_sigkill_of_the_master_under_load;
        death: a_killed_arbiter_takes_its_workers_with_it_and_leaves_the_scorer""",
    ),
    4: _entry(
        "SIGKILL of the scorer with callers waiting",
        """processes: sigkill_of_the_scorer_with_a_full_house_waiting;
        death: a_scorer_that_dies_within_a_call_ends_every_waiting_request_with_503_at_once
        20_times_sigkill_of_the_scorer_under_load;
        unit/test_scorer_client: a_scorer_that_leaves_without_an_answer_is_told_at_once""",
    ),
    5: _entry(
        "SIGKILL of the scorer between a job and its answer, 50 times",
        """processes: 50_times_sigkill_of_the_scorer_between_a_job_and_its_answer;
        death: a_scorer_killed_between_taking_a_job_and_answering_it_mixes_up_nothing""",
    ),
    6: _entry(
        "SIGSTOP, then SIGCONT of the scorer",
        """processes: 20_times_a_freeze_of_the_scorer_under_load;
        death: a_frozen_scorer_lets_jobs_in_flight_end_at_their_budget_and_never_runs_or_answers_them_late
        a_frozen_scorer_is_503_for_new_requests_soon_and_not_only_at_their_budget
        a_frozen_scorer_is_a_503_on_health;
        unit/test_scorer_client: a_listener_that_never_shakes_hands_is_unavailable_soon""",
    ),
    7: _entry(
        "a call that hangs",
        """processes: 5_times_a_hang_in_a_call_under_load;
        death: a_hung_job_dumps_all_stacks_and_exits_70_after_hang_s a_long_legal_job_below_hang_s_is_left_alone""",
    ),
    8: _entry(
        "the inference thread dies outside a call",
        """processes: an_inference_thread_that_dies_outside_a_call_ends_the_process
        the_answer_of_a_scorer_that_exits_with_it_always_arrives;
        unit/test_worker: an_exception_that_is_no_error_of_the_engine_ends_the_thread_and_the_process_is_told;
        death: a_load_that_breaks_is_70""",
    ),
    9: _entry(
        "a second scorer on the run directory",
        """processes: 10_times_a_second_scorer_under_load;
        death: a_second_scorer_on_the_run_directory_leaves_with_73_before_it_loads""",
    ),
    10: _entry(
        "starts in either order",
        """processes: 10_starts_in_either_order
        a_web_tier_that_waits_20_s_for_its_scorer_serves_the_first_request_after;
        death: the_web_tier_may_start_first the_scorer_may_start_first
        a_scorer_restarted_while_a_body_is_on_its_way_serves_it""",
    ),
    11: _entry(
        "refused starts",
        """death: a_bad_setting_stops_the_scorer_with_78_and_names_the_variable
        a_bad_setting_stops_the_web_tier_and_names_the_variable
        an_engine_that_refuses_to_start_is_78_with_its_reason_and_the_web_tier_stays_at_503;
        unit/test_intern_load: a_wrong_hash_refuses_to_start_naming_file_expected_and_found
        a_path_that_is_not_the_pinned_snapshot_refuses_to_start
        a_warm_up_that_changes_by_one_bit_without_the_tower_refuses_to_start
        a_token_count_that_predict_does_not_report_refuses_to_start""",
    ),
    12: _entry(
        "a start that never ends",
        """surroundings: a_load_that_never_ends_is_given_up_and_leaves_no_process;
        death: sigterm_while_loading_stops_the_scorer""",
        "the bound is the supervisor's: conf/serve.py here, TimeoutStartSec under systemd",
    ),
    13: _entry(
        "another protocol version",
        """wire: a_newer_scorer_is_503_with_both_versions_in_the_log_until_it_is_replaced
        a_newer_web_tier_is_503_with_both_versions_in_the_log
        a_scorer_of_another_version_answers_an_older_peer_with_both_versions;
        unit/test_broker: another_protocol_version_is_answered_with_both_versions""",
    ),
    14: _entry(
        "SIGTERM of the web tier",
        """processes: 10_times_sigterm_of_the_web_tier_under_load;
        drain: a_stopped_web_tier_answers_what_is_in_flight_and_leaves_with_0
        a_web_tier_stopped_under_load_truncates_no_answer
        a_web_tier_stopped_after_its_scorer_was_killed_answers_503_and_leaves_with_0""",
    ),
    15: _entry(
        "SIGTERM of the scorer",
        """processes: 20_times_sigterm_of_the_scorer_under_load;
        drain: a_stopped_scorer_finishes_what_is_queued_refuses_what_comes_and_leaves_with_0
        a_scorer_stopped_under_load_leaves_with_0_and_nobody_gets_anything_but_200_or_503
        drain_s_ends_a_drain_that_takes_too_long_and_every_caller_is_told an_idle_scorer_leaves_at_once""",
    ),
    16: _entry(
        "SIGHUP of the web tier",
        """processes: 20_reloads_under_load_lose_no_request;
        drain: a_reload_with_the_same_limit_loses_no_request a_reload_keeps_the_limit_over_old_and_new_workers
        a_reload_with_another_limit_keeps_the_old_one_or_is_refused a_long_request_survives_a_reload
        a_second_web_tier_with_another_limit_is_refused_while_the_first_has_requests""",
    ),
    17: _entry(
        "the run directory tampered with",
        """surroundings: 5_times_the_run_directory_is_tampered_with_under_load;
        wire: a_deleted_slot_file_refuses_with_a_clear_log_until_the_web_tier_is_restarted
        a_worker_restarted_after_the_slot_file_was_deleted_does_not_double_the_limit
        a_truncated_slot_file_never_admits_without_limit_and_the_service_can_be_restarted
        a_job_whose_caller_left_over_a_truncated_slot_file_does_not_end_the_scorer
        an_unlinked_socket_is_503_or_served_and_a_restart_of_the_scorer_mends_it
        a_deleted_run_directory_is_503_never_admission_without_limit""",
    ),
    18: _entry(
        "a full disk under the logs, a closed standard error",
        """surroundings: a_full_disk_under_the_logs_or_no_standard_error_at_all_costs_no_request;
        unit/test_logs: a_full_disk_or_a_closed_stderr_fails_no_request""",
    ),
    19: _entry(
        "more callers than slots",
        """requests: 50_bursts_of_max_queue_plus_8;
        admission: of_max_queue_plus_8_posts_at_once_exactly_max_queue_are_accepted
        429_is_answered_before_any_byte_of_the_body_is_sent the_default_of_32_slots_takes_exactly_32""",
    ),
    20: _entry(
        "early answers to large bodies, 200 times",
        """early: 200_early_answers_to_a_client_that_still_sends an_early_answer_reaches_a_client_that_still_sends;
        http: a_connection_is_usable_after_an_early_answer_to_a_small_body""",
    ),
    21: _entry(
        "Expect: 100-continue",
        """http: a_refused_caller_is_not_told_to_continue
        a_caller_over_the_queue_or_the_limit_is_not_told_to_continue an_admitted_caller_is_told_to_continue_and_served
        a_caller_who_expects_a_100_and_leaves_costs_nothing""",
    ),
    22: _entry(
        "callers that leave",
        """requests: 20_times_every_waiting_caller_leaves;
        admission: a_caller_who_leaves_while_queued_frees_its_slot_and_its_job_is_skipped
        a_caller_who_leaves_while_its_job_runs_keeps_the_slot_until_the_engine_is_free
        the_calls_of_a_caller_who_left_stop_between_two_of_them a_caller_who_leaves_in_mid_body_frees_its_slot""",
    ),
    23: _entry(
        "a budget that ends in the queue",
        """requests: 20_times_every_budget_ends_in_the_queue;
        admission: a_budget_that_ends_while_queued_is_504_and_the_job_is_never_run
        the_jobs_of_callers_that_time_out_and_come_back_do_not_pile_up_behind_a_long_call;
        unit/test_broker: jobs_of_callers_that_gave_up_do_not_pile_up_behind_a_long_call
        no_live_job_is_dropped_in_whatever_order_the_jobs_of_a_slot_arrive""",
    ),
    24: _entry(
        "one thread, one request at a time, in order",
        """isolation: requests_never_overlap_and_the_calls_of_one_are_never_interleaved
        every_call_runs_on_the_thread_that_loaded_the_engine
        service_is_first_in_first_out_over_all_workers concurrent_answers_are_everybodys_own""",
    ),
    25: _entry(
        "/health while every thread waits",
        """isolation: health_answers_while_a_call_is_blocked_and_every_slot_waits;
        admission: a_refused_caller_who_never_sends_its_body_does_not_hold_up_health
        of_max_queue_plus_8_posts_at_once_exactly_max_queue_are_accepted""",
    ),
    26: _entry(
        "slow callers",
        """http: a_dripping_body_is_408_at_the_deadline a_slow_body_within_the_deadline_is_served
        a_body_that_never_comes_is_408_at_the_deadline_and_more_of_them_than_slots_free_every_thread;
        nginx: slow_senders_hold_no_thread_and_no_slot a_slow_reader_holds_no_thread""",
        "slow heads need the proxy (conf/README.md)",
    ),
    27: _entry(
        "the body limit to the byte, chunks, trailers",
        """http: the_limit_to_the_byte an_endless_chunked_body_is_413_near_the_limit_and_costs_little_memory
        chunk_extensions_and_trailers_are_passed_over a_small_json_with_megabytes_of_padding_in_chunks_is_413
        a_compression_bomb_is_413_and_costs_little_memory""",
    ),
    28: _entry(
        "odd lengths, bad chunks, smuggling",
        """http: an_odd_length_is_refused_and_what_follows_is_not_a_request_of_its_own
        a_malformed_chunk_is_422_and_ends_the_connection a_truncated_body_is_422_and_never_scored
        a_pipelined_second_request_is_not_read_as_part_of_a_refused_one a_body_that_looks_like_a_request_is_not_served
        random_bytes_never_cost_the_service""",
    ),
    29: _entry(
        "JSON that is none",
        """trouble: rank_16_deep_nesting_is_422_above_a_fixed_depth_and_200_below rank_16_giant_numbers_are_422
        rank_17_a_lone_surrogate_is_422_wherever_it_stands
        rank_21_the_same_name_twice_is_422_naming_it rank_39_a_literal_that_is_no_json_is_422
        rank_40_a_wrong_top_level_is_422 rank_40_odd_encodings_are_treated_alike_everywhere;
        unit/test_jsonio: arbitrary_bytes_raise_nothing_but_invalid_json
        a_number_that_overflows_to_infinity_is_refused""",
    ),
    30: _entry(
        "Authorization headers",
        """trouble: rank_20_the_auth_check_neither_crashes_nor_is_too_picky;
        unit/test_auth: the_comparison_is_in_constant_time_and_on_bytes
        anything_else_is_401_and_never_an_exception_of_another_kind;
        contract/test_auth: a_post_without_the_right_bearer_is_401_and_never_reaches_the_engine""",
        "the spread of times is not measured: the comparison is hmac.compare_digest's",
    ),
    31: _entry(
        "10,000 bodies of the contract's grammar",
        """unit/test_plan: properties_of_any_plan;
        conformance/test_schemathesis: the_service_keeps_to_the_document_that_it_serves;
        fuzz/test_targets: a_target_holds_for_3000_damaged_seeds_and_random_bytes
        a_target_holds_for_what_hypothesis_tries""",
    ),
    32: _entry(
        "strangers on the scorer's socket",
        """wire: a_message_of_another_shape_is_counted_and_harms_nobody
        10000_random_messages_leave_the_broker_alive_and_are_counted
        a_job_with_the_right_boot_id_and_odd_numbers_is_refused_and_harms_nobody
        a_10_megabyte_frame_is_absorbed raw_bytes_that_are_not_zeromq_are_absorbed
        a_message_of_another_id_or_slot_never_answers_for_a_real_request;
        unit/test_broker: no_header_ends_the_broker random_frames_are_dropped_or_answered_and_counted""",
    ),
    33: _entry(
        "replies that cannot be right",
        """wire: a_reply_that_cannot_be_right_is_an_error_and_never_an_answer a_second_reply_to_one_job_reaches_nobody;
        unit/test_scorer_client: a_kept_connection_to_a_scorer_that_left_is_not_used_again""",
    ),
    34: _entry(
        "200,000 random doubles",
        """requests: 200_000_random_doubles_pass_both_ways_bit_for_bit;
        wire: doubles_pass_through_both_tiers_bit_for_bit;
        trouble: rank_08_a_broken_number_or_a_missing_answer_is_never_a_200""",
    ),
    35: _entry(
        "no code from the wire, no other user on the socket",
        """test_layout: nothing_that_comes_over_a_wire_is_ever_executed;
        surroundings: another_user_can_neither_connect_nor_read_the_run_directory;
        wire: the_socket_is_the_owners_alone_and_the_directory_is_closed_to_others
        a_run_directory_that_is_made_is_0750""",
    ),
    36: _entry(
        "out of memory in a call, 100 times",
        """processes: 100_times_out_of_memory_under_load_leave_nothing_behind;
        unit/test_torch_failures: an_oom_is_reraised_unchained_and_the_cache_emptied_only_after_the_tensors_are_dead
        a_hundred_ooms_in_a_row_leave_nothing_behind;
        contract/test_engine_failures: a_failure_in_any_call_makes_the_whole_request_fail""",
        "once on a card: tests/gpu",
    ),
    37: _entry(
        "other failures of the engine",
        """death: an_unknown_failure_keeps_the_process_when_the_canary_answers_as_at_start
        a_canary_that_answers_otherwise_replies_first_and_exits_70
        a_fatal_error_replies_first_and_exits_70_with_every_waiting_caller_told;
        unit/test_recovery: only_the_first_line_of_a_runtime_error_counts_as_out_of_memory;
        unit/test_torch_failures: a_runtime_error_whose_first_line_says_out_of_memory_becomes_out_of_memory
        a_value_error_keeps_its_message_and_is_released_and_raised_unchained""",
    ),
    38: _entry(
        "the slack of the memory release, to the byte",
        """unit/test_torch_failures: a_burst_over_baseline_plus_slack_is_released
        a_burst_at_baseline_plus_slack_is_left_alone""",
    ),
    39: _entry(
        "GPU: over the cap, and A against A",
        """gpu/test_intern_gpu: an_over_cap_request_is_out_of_memory_three_times_and_memory_is_back_each_time
        a_against_a_is_bit_identical_alone_after_a_long_call_and_after_an_oom""",
        "needs a card",
    ),
    40: _entry(
        "an hour of mixed load and random faults",
        "processes: 30_random_faults_one_after_the_other",
        "make soak MINUTES=60",
    ),
}

TROUBLE: Mapping[int, Entry] = {
    1: _entry(
        "an over-limit chunked body",
        """trouble: rank_01_an_over_limit_chunked_body_is_refused_and_not_cut
        rank_01_an_endless_chunked_body_is_refused_and_reading_stops;
        http: a_small_json_with_megabytes_of_padding_in_chunks_is_413""",
    ),
    2: _entry(
        "/health behind scoring requests",
        """trouble: rank_02_health_and_429_do_not_wait_behind_scoring_requests;
        isolation: health_answers_while_a_call_is_blocked_and_every_slot_waits""",
    ),
    4: _entry(
        "a late answer",
        """requests: late_answers_reach_nobody_50_times_on_one_connection_and_on_8_at_once;
        trouble: rank_04_a_late_answer_never_reaches_another_request;
        isolation: a_late_answer_never_reaches_the_next_request_on_the_connection
        late_answers_reach_nobody_over_eight_parallel_connections""",
    ),
    6: _entry(
        "the scorer dies or freezes",
        """processes: sigkill_of_the_scorer_with_a_full_house_waiting 20_times_a_freeze_of_the_scorer_under_load;
        death: a_frozen_scorer_is_a_503_on_health a_hung_job_dumps_all_stacks_and_exits_70_after_hang_s""",
    ),
    8: _entry(
        "NaN or a missing answer",
        """trouble: rank_08_a_broken_number_or_a_missing_answer_is_never_a_200
        rank_08_neither_in_the_native_profile;
        decisions: a_broken_answer_is_500_for_the_whole_request""",
    ),
    9: _entry(
        "early answers to a client that still sends",
        """early: 200_early_answers_to_a_client_that_still_sends;
        trouble: rank_09_an_early_answer_reaches_a_client_that_is_still_sending""",
    ),
    11: _entry(
        "MAX_QUEUE for the service",
        """trouble: rank_11_max_queue_holds_for_the_service_and_over_all_routes_together;
        admission: four_workers_share_one_limit the_limit_counts_all_routes_together""",
    ),
    12: _entry(
        "slots lost on error paths",
        """requests: every_error_path_by_turns_200_times_under_load_leaves_every_slot_free;
        trouble: rank_12_no_error_path_loses_a_slot rank_12_a_reset_in_the_middle_of_a_body_loses_no_slot;
        admission: every_error_path_gives_its_slot_back;
        metrics: a_worker_killed_in_the_middle_of_requests_leaves_no_slot_in_use""",
    ),
    13: _entry(
        "key order",
        """trouble: rank_13_key_order_is_kept_on_the_way_to_the_engine_and_back
        rank_13_key_order_is_kept_on_systemone""",
    ),
    15: _entry(
        "memory after an OOM",
        """trouble: rank_15_a_failed_calls_frames_are_let_go;
        processes: 100_times_out_of_memory_under_load_leave_nothing_behind;
        unit/test_worker: a_failed_job_is_answered_by_its_verdict_with_its_frames_dead_before_the_release
        a_hundred_failures_in_a_row_leave_nothing_behind""",
        "on a card: tests/gpu",
    ),
    16: _entry(
        "deep nesting, giant integers",
        """trouble: rank_16_deep_nesting_is_422_above_a_fixed_depth_and_200_below
        rank_16_brackets_without_an_end_are_422 rank_16_giant_numbers_are_422
        rank_16_an_integer_within_the_limit_is_taken_as_it_is""",
    ),
    17: _entry(
        "lone surrogates",
        """trouble: rank_17_a_lone_surrogate_is_422_wherever_it_stands rank_17_a_pair_is_taken_and_echoed_unchanged;
        decisions: a_lone_surrogate_is_400_wherever_it_stands_and_a_pair_is_echoed""",
    ),
    19: _entry(
        "the framework's HTML and codes",
        """trouble: rank_19_every_error_of_the_framework_is_json_in_the_envelope
        rank_19_a_json_body_is_served_whatever_its_content_type rank_19_a_gzip_body_is_unpacked
        rank_19_another_encoding_is_415_in_the_envelope rank_19_a_broken_gzip_body_is_422
        rank_19_a_gzip_bomb_is_413_and_costs_no_memory rank_19_an_empty_body_is_422""",
    ),
    20: _entry("the auth check", "trouble: rank_20_the_auth_check_neither_crashes_nor_is_too_picky"),
    21: _entry(
        "the same key twice",
        "trouble: rank_21_the_same_name_twice_is_422_naming_it rank_21_the_same_option_id_twice_is_422",
    ),
    23: _entry(
        "caller text as prompt structure",
        """intern/test_intern_tiny: the_reserved_marker_in_a_state_is_refused
        what_the_file_refuses_is_refused_with_its_own_message;
        unit/test_torch_failures: a_prompt_with_more_markers_than_fields_is_refused_before_any_forward;
        labels/test_labels_requirements: c9_a_special_token_in_a_state_is_broken_and_forges_no_turn
        c9_special_tokens_and_the_marker_in_instructions_descriptions_and_values_are_broken;
        labels/test_labels_granite: c9_callers_text_neither_switches_an_adapter_nor_moves_the_point""",
        "control tokens reach the intern engine's model: the pinned file's own limit (README, Engines)",
    ),
    25: _entry(
        "parts left out, null, structured instructions",
        """trouble: rank_25_the_native_profile_says_exactly_what_the_engines_own_validation_says
        rank_25_the_jev_profile_scores_or_refuses_and_asks_in_plain_texts
        rank_25_on_decide_a_null_description_is_422""",
    ),
    26: _entry(
        "model, images, unknown fields",
        """trouble: rank_26_any_model_value_is_200_and_the_replys_model_a_string
        rank_26_images_are_refused_and_null_or_an_empty_list_is_none
        rank_26_unknown_names_are_ignored_alike_at_every_depth""",
    ),
    28: _entry(
        "/v1/decisions",
        """edges: edge_1_names_are_optional_and_may_repeat_or_be_empty
        edge_5_a_system_message_is_named_and_user_messages_alone_are_served
        edge_6_an_image_in_instructions_is_400_and_named
        edge_11_openais_caching_fields_change_nothing_and_temperature_is_unknown;
        decisions: every_question_is_a_call_of_its_own_and_its_name_stays_here;
        contract/test_decisions_granite: d10_the_body_has_no_field_beyond_openais_whatever_the_engine_adds;
        conformance/test_openai_sdk: every_kind_of_input_and_question_is_parsed_by_the_strict_client""",
    ),
    29: _entry(
        "timers and signals",
        """processes: a_call_of_45_s_is_answered 10_times_sigterm_of_the_web_tier_under_load;
        drain: a_stopped_web_tier_answers_what_is_in_flight_and_leaves_with_0
        a_web_tier_stopped_after_its_scorer_was_killed_answers_503_and_leaves_with_0""",
    ),
    30: _entry(
        "a killed parent",
        """surroundings: a_killed_launcher_takes_everything_with_it_and_the_next_start_works
        the_supervisor_starts_a_killed_scorer_and_a_killed_master_again;
        death: a_killed_arbiter_takes_its_workers_with_it_and_leaves_the_scorer""",
    ),
    32: _entry(
        "a socket stuck after a timeout; start order",
        """processes: a_web_tier_that_waits_20_s_for_its_scorer_serves_the_first_request_after;
        death: three_rounds_without_a_scorer_and_with_it_again the_web_tier_may_start_first
        a_scorer_restarted_since_a_worker_last_asked_is_asked_anew_by_every_worker""",
    ),
    33: _entry(
        "a poisoned device",
        """processes: the_answer_of_a_scorer_that_exits_with_it_always_arrives;
        death: a_fatal_error_replies_first_and_exits_70_with_every_waiting_caller_told""",
    ),
    35: _entry(
        "ZeroMQ set-up",
        """death: a_preloaded_web_tier_serves_50_requests_on_two_workers
        a_bad_setting_stops_the_scorer_with_78_and_names_the_variable;
        unit/test_rundir: a_socket_path_of_107_bytes_is_accepted_and_one_more_is_refused_with_the_limit""",
    ),
    36: _entry(
        "metrics of several processes",
        """metrics: every_worker_tells_the_sum_over_all_workers counts_survive_the_death_of_workers_and_never_go_down
        a_worker_killed_in_the_middle_of_requests_leaves_no_slot_in_use a_new_service_counts_from_0;
        unit/test_metrics: dead_workers_are_folded_into_one_file_a_kind_and_their_counts_stay""",
    ),
    38: _entry(
        "quiet coercion",
        "trouble: rank_38_nothing_is_coerced rank_38_strings_that_look_like_other_types_stay_strings",
    ),
    39: _entry(
        "NaN and Infinity in a request",
        "trouble: rank_39_a_literal_that_is_no_json_is_422 rank_39_the_words_as_strings_are_texts; "
        "edges: edge_9_what_is_not_strict_json_is_400_and_never_500",
    ),
    40: _entry(
        "wrong containers, odd encodings",
        """trouble: rank_40_a_wrong_top_level_is_422 rank_40_a_wrong_nested_container_is_422
        rank_40_odd_encodings_are_treated_alike_everywhere;
        decisions: a_body_that_is_no_object_is_400 a_value_of_another_kind_is_refused_by_its_path""",
    ),
    41: _entry(
        "limits and packing",
        """trouble: rank_41_options_of_decide rank_41_questions_of_systemone_in_the_native_profile
        rank_41_decisions_of_decide_shared rank_41_orderings_are_counted_after_expansion""",
    ),
    43: _entry(
        "the engine's numbers",
        """trouble: rank_43_served_numbers_are_the_engines_bit_by_bit rank_43_floats_survive_the_round_trip
        rank_43_in_a_tie_top_is_natives_choice_and_combined_top_the_callers_first
        rank_43_two_orderings_that_disagree_with_equal_combined_mass""",
    ),
    45: _entry(
        "long input",
        """trouble: rank_45_long_input_is_scored_whole_up_to_the_limit_and_refused_after_it
        rank_45_a_shared_request_is_422_when_only_its_second_chunk_is_too_long;
        intern/test_intern_tiny: a_call_of_exactly_max_tokens_is_scored_and_one_token_more_is_refused""",
    ),
    47: _entry(
        "what a 500 and the log tell",
        """trouble: rank_47_a_500_tells_nothing_and_the_log_keeps_no_callers_text
        rank_47_a_bug_of_ours_is_a_500_with_a_fixed_message;
        secrets: no_text_of_a_caller_and_no_engine_message_reaches_any_log
        a_request_that_gunicorn_refuses_leaves_no_text_of_the_callers_in_the_log
        a_failure_of_the_engine_is_one_record_with_its_frames""",
    ),
    48: _entry(
        "bad configuration",
        """contract/test_config: the_scorer_process_refuses_to_start_naming_the_variable
        the_web_process_refuses_to_start_naming_the_variable vram_cap_gib_must_be_finite_and_above_0;
        unit/test_intern_load: a_trailing_slash_is_accepted a_link_that_points_at_the_snapshot_is_accepted""",
    ),
    49: _entry(
        "the memory cap",
        """unit/test_intern_load: the_cap_is_applied_before_the_engine_is_constructed
        a_cap_below_the_weights_refuses_to_start_naming_the_cap a_cap_above_the_card_refuses_to_start;
        intern/test_intern_tiny: a_config_without_a_number_type_still_loads_in_bfloat16;
        gpu/test_intern_gpu: memory_outside_the_allocator_does_not_grow_over_two_hundred_mixed_calls""",
        "the card's own numbers need a card",
    ),
    50: _entry(
        "fast kernels, network at start",
        """unit/test_intern_load: a_missing_kernel_on_cuda_refuses_to_start
        a_missing_kernel_is_allowed_by_the_setting_and_shown;
        intern/test_intern_tiny: another_process_answers_bit_identically_and_without_any_network""",
        "times of first calls need a card: tests/gpu/first_calls.py",
    ),
    51: _entry(
        "a neighbour's request",
        """trouble: rank_51_a_neighbours_request_changes_no_number;
        intern/test_intern_http: answers_are_bit_identical_alone_beside_eight_clients_and_after_a_restart""",
    ),
    52: _entry(
        "behind nginx",
        """nginx: every_route_answers_as_it_does_without_nginx the_applications_own_errors_pass_untouched
        a_429_and_a_503_pass_with_their_retry_after an_error_of_nginx_is_the_applications_word_for_word
        the_application_says_413_up_to_the_proxys_limit_and_the_proxy_above
        a_post_whose_worker_dies_is_never_sent_again a_caller_that_leaves_frees_its_slot;
        early: an_early_answer_reaches_a_client_that_still_sends""",
    ),
}
