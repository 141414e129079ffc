"""Rules of the signal: when a stage is under pressure, who hears of it, and what sources do."""

from pipeline_support.mutants.mutant import Mutant

PRESSURE = "pipeline/runner/pressure.py"
SIGNALS = "pipeline/runner/pressure.py"
CONTROLLER = "pipeline/runner/controller.py"
GATE = "pipeline/runner/pressure.py"
STAGE_FLOW = "pipeline/runner/stage_flow.py"
SKEW = "groups/skew.py"
TESTS = "pipeline/test_backpressure.py"

DETECTION = (
    Mutant(
        "ActiveAboveTheThreshold",
        PRESSURE,
        "is_active = highest > 1 or (",
        "is_active = highest >= 1 or (",
        (f"{TESTS} -k inactive_below",),
    ),
    Mutant(
        "QueueCountsAsWell",
        PRESSURE,
        "            (queue_rows, config.queue_size_threshold),\n",
        "",
        (f"{TESTS} -k active_when_queue_above", f"{TESTS} -k queue_alone_keeps_it_active"),
    ),
    Mutant(
        "BothReleaseIt",
        PRESSURE,
        "before.is_active and not (is_known and highest < _exact(config.release_ratio))",
        "before.is_active and not (is_known and ratios[0] < _exact(config.release_ratio))",
        (f"{TESTS} -k queue_alone_keeps_it_active",),
    ),
    Mutant(
        "ReleasedBelowTheRatio",
        PRESSURE,
        "before.is_active and not (is_known and highest < _exact(config.release_ratio))",
        "before.is_active and not (is_known and highest <= _exact(config.release_ratio))",
        (f"{TESTS} -k released_below_0_7",),
    ),
    Mutant(
        "ActiveUntilReleased",
        PRESSURE,
        "before.is_active and not (is_known and highest < _exact(config.release_ratio))",
        "False",
        (f"{TESTS} -k state_stays_over_checks", f"{TESTS} -k released_below_0_7"),
    ),
    Mutant(
        "UnknownDoesNotRelease",
        PRESSURE,
        "is_known = is_lag_known and is_queue_known",
        "is_known = True",
        (f"{TESTS} -k test_signal_reason",),
    ),
    Mutant(
        "UnknownIsNotZero",
        PRESSURE,
        "return None if rows is None or rows < 0 else rows",
        "return max(rows or 0, 0)",
        (f"{TESTS} -k unknown_reading_neither_activates_nor_releases",),
    ),
    Mutant(
        "FactorDoesNotRiseInTheDark",
        PRESSURE,
        "factor = min(factor, before.slow_down_factor)",
        "pass",
        ("pipeline/test_backpressure.py -k unknown_reading_neither_activates_nor_releases",),
    ),
    Mutant(
        "EarlyWarningAt08",
        PRESSURE,
        "early_warning=highest > _exact(config.early_warning_ratio),",
        "early_warning=highest > 1,",
        (f"{TESTS} -k early_warning_0_8",),
    ),
    Mutant(
        "FactorInSteps",
        PRESSURE,
        "return float((1 - ratio) / (1 - release) // step * step)",
        "return float((1 - ratio) / (1 - release))",
        (f"{TESTS} -k factor_table", f"{TESTS} -k test_signal_factor"),
    ),
    Mutant(
        "FactorFromTheReleaseOn",
        PRESSURE,
        "    if ratio <= release:\n        return 1.0\n",
        "",
        ("pipeline/test_pressure.py -k factor_is_1_up_to_the_release",),
    ),
    Mutant(
        "ExactShares",
        PRESSURE,
        "return Fraction(str(share))",
        "return Fraction(share)",
        ("pipeline/test_pressure.py -k limits_are_exact",),
    ),
    Mutant(
        "LagOfASourceIsNoPressure",
        STAGE_FLOW,
        "lag = 0 if self.stage.is_source else reading.lag",
        "lag = reading.lag",
        (f"{TESTS} -k lag_of_a_source_is_not_a_pressure",),
    ),
)

PROPAGATION = (
    Mutant(
        "StagesHearOfThoseAfterThem",
        SIGNALS,
        "heard = _combined(found[each].effective for each in downstream.get(stage, ()))",
        "heard = _combined(_own(each, own.get(each)) for each in downstream.get(stage, ()))",
        (f"{TESTS} -k test_a_b_c", f"{TESTS} -k check_asks_all_downstream"),
    ),
    Mutant(
        "LeastFactorOfAll",
        SIGNALS,
        "slow_down_factor=min(each.slow_down_factor for each in combined),",
        "slow_down_factor=combined[-1].slow_down_factor,",
        (f"{TESTS} -k effective_is_the_least_of_all",),
    ),
    Mutant(
        "CauseIsTheRoot",
        SIGNALS,
        "found[stage] = Propagated(heard, _combined((heard, _own(stage, own.get(stage)))))",
        "found[stage] = Propagated(heard, _combined((_own(stage, own.get(stage)), heard)))",
        (f"{TESTS} -k last_of_equally_slow_stages_is_the_cause",),
    ),
    Mutant(
        "CauseIsActive",
        SIGNALS,
        "return not pressure.is_active, pressure.slow_down_factor, not pressure.early_warning",
        "return False, pressure.slow_down_factor, not pressure.early_warning",
        (f"{TESTS} -k names_a_stage_where_backpressure_is_active",),
    ),
    Mutant(
        "MissingNeighbourCountsAsOne",
        SIGNALS,
        "return EffectivePressure(missing=frozenset((stage,)))",
        "return EffectivePressure(0.0, True, True, missing=frozenset((stage,)))",
        (f"{TESTS} -k missing_downstream_is_tolerated",),
    ),
    Mutant(
        "MissingNeighbourIsNamed",
        SIGNALS,
        "return EffectivePressure(missing=frozenset((stage,)))",
        "return EffectivePressure()",
        (f"{TESTS} -k missing_downstream_is_tolerated",),
    ),
    Mutant(
        "StaleNeighbourIsMissing",
        CONTROLLER,
        "if now - flow.last.read_at <= self._patience_s",
        "if flow.last.read_at > 0",
        (f"{TESTS} -k stale_downstream_counts_as_1_0",),
    ),
    Mutant(
        "ChecksThatCeaseReleaseAll",
        CONTROLLER,
        "return self._nothing_known if is_stale else view",
        "return view",
        (f"{TESTS} -k nothing_is_held_back_when_the_checks_cease",),
    ),
    Mutant(
        "SignalOnlyWhileActive",
        CONTROLLER,
        "if not effective.is_active or effective.cause is None:",
        "if effective.cause is None:",
        (f"{TESTS} -k early_warning_0_8",),
    ),
)

SOURCES = (
    Mutant(
        "CreditOnlyInforms",
        GATE,
        '    if gate == "credit":\n        return OPEN\n',
        "",
        (
            "pipeline/test_gate.py -k decision_by_gate",
            "pipeline/test_partition_backpressure_integration.py -k gate_credit_only_informs",
        ),
    ),
    Mutant(
        "EarlyWarningPausesPush",
        GATE,
        "pauses = heard.early_warning or heard.slow_down_factor == 0 or waits_for_release",
        "pauses = heard.slow_down_factor == 0 or waits_for_release",
        ("pipeline/test_gate.py -k decision_by_gate",),
    ),
    Mutant(
        "SignalPausesWhileActive",
        GATE,
        "pauses = heard.early_warning or heard.slow_down_factor == 0 or waits_for_release",
        "pauses = heard.early_warning or heard.slow_down_factor == 0",
        ("pipeline/test_gate.py -k source_is_paused_at_these_lags",),
    ),
    Mutant(
        "LimitTimesTheFactor",
        GATE,
        "return Limit(*(max(1, int(most * self.factor)) for most in limit))",
        "return limit",
        (
            f"{TESTS} -k limit_shrinks_with_the_factor",
            "pipeline/test_partition_backpressure_integration.py -k share_of_the_room",
        ),
    ),
    Mutant(
        "SomethingAlwaysPasses",
        GATE,
        "max(1, int(most * self.factor))",
        "int(most * self.factor)",
        ("pipeline/test_gate.py -k limit_is_at_least_one_row_and_one_byte",),
    ),
    Mutant(
        "OwnPressureDoesNotPause",
        CONTROLLER,
        "name: decide(propagated[name].heard, self._config.gate)",
        "name: decide(propagated[name].effective, self._config.gate)",
        (f"{TESTS} -k pressure_of_a_source_does_not_pause_it",),
    ),
    Mutant(
        "PauseByHandOutlastsTheSignal",
        CONTROLLER,
        "self._parts.resume(source, PAUSE_REASON)",
        "self._parts.resume(source)",
        ("pipeline/test_partition_backpressure_integration.py -k pause_by_hand",),
    ),
)

STATES_AND_LOG = (
    Mutant(
        "StatesFollowTheTable",
        "pipeline/runner/states.py",
        "        if following not in allowed:",
        "        if False:",
        ("pipeline/test_states.py -k states_follow_the_table",),
    ),
    Mutant(
        "WrongPathChangesNothing",
        "pipeline/runner/states.py",
        "        for state, following in zip(path, states, strict=False):\n"
        "            self._check(state, following)\n"
        "        self.path = path\n",
        "        self.path = path\n"
        "        for state, following in zip(path, states, strict=False):\n"
        "            self._check(state, following)\n",
        ("pipeline/test_states.py -k wrong_step_changes_nothing",),
    ),
    Mutant(
        "OneLineAMinute",
        "base/background_log.py",
        "if state == known.logged or now - known.logged_at < self._interval_s:",
        "if state == known.logged:",
        ("pipeline/test_flow_log.py -k changes_within_a_minute",),
    ),
    Mutant(
        "LogOnChangeOnly",
        "base/background_log.py",
        "if state == known.logged or now - known.logged_at < self._interval_s:",
        "if now - known.logged_at < self._interval_s:",
        ("pipeline/test_flow_log.py -k nothing_is_logged_while_nothing_changes",),
    ),
)

SKEW_RULES = (
    Mutant(
        "SkewAboveTheRatio",
        SKEW,
        "seed_skewed=ratio > threshold,",
        "seed_skewed=ratio >= threshold,",
        ("pipeline/test_skew_detection.py -k exactly_at_threshold_is_not_skewed",),
    ),
    Mutant(
        "UnknownLagIsLeftOut",
        SKEW,
        "return lag if lag >= 0 else None",
        "return max(lag, 0)",
        ("pipeline/test_skew_detection.py -k negative_lag_is_unknown",),
    ),
    Mutant(
        "HotTwiceInARow",
        SKEW,
        "(hot if partition in self._above else above).add(partition)",
        "hot.add(partition)",
        ("pipeline/test_skew_detection.py -k hot_after_two_readings",),
    ),
    Mutant(
        "OneRecordIsQuiet",
        SKEW,
        "reading.lag / self._config.min_records,",
        "2.0,",
        ("pipeline/test_skew_detection.py -k one_record_is_quiet",),
    ),
    Mutant(
        "ComparedWithTheOthers",
        SKEW,
        "others, time_lag = _median_of_others(lags, reading.lag), reading.time_lag_s",
        "others, time_lag = fmean(lags), reading.time_lag_s",
        ("pipeline/test_skew_detection.py -k two_partitions",),
    ),
)

SIGNAL_MUTANTS = (*DETECTION, *PROPAGATION, *SOURCES, *STATES_AND_LOG, *SKEW_RULES)
