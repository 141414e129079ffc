"""Rules of pipelines on Spark: the size of epochs, pauses, and what Spark may pickle and trim."""

from pipeline_support.mutants.mutant import Mutant

SIZE = "pipeline/spark/epoch_size.py"
EPOCHS = "pipeline/spark/epochs.py"
READER = "pipeline/spark/reader.py"
OF_SIZE = "pipeline/spark/test_epoch_size.py"
OF_EPOCHS = "pipeline/spark/test_epochs.py"

SIZES = (
    Mutant(
        "EpochsAtMostDouble",
        SIZE,
        "MOST_RATIO = 2.0",
        "MOST_RATIO = 8.0",
        (f"{OF_SIZE} -k no_step_is_larger_than_double",),
    ),
    Mutant(
        "EpochsAtLeastAFifth",
        SIZE,
        "LEAST_RATIO = 0.2",
        "LEAST_RATIO = 0.0",
        (f"{OF_SIZE} -k no_step_is_larger_than_double",),
    ),
    Mutant(
        "GoalCountsTheFixedCost",
        SIZE,
        "_FIXED_COSTS = 6",
        "_FIXED_COSTS = 0",
        (f"{OF_SIZE} -k goal_is_the_largest", f"{OF_SIZE} -k settles_at_the_goal"),
    ),
    Mutant(
        "GoalFollowsTheTrigger",
        SIZE,
        "_SHARE_OF_TRIGGER = 0.8",
        "_SHARE_OF_TRIGGER = 0.0",
        (f"{OF_SIZE} -k goal_is_the_largest", f"{OF_SIZE} -k settles_at_the_goal"),
    ),
    Mutant(
        "SlowEpochDoesNotTiltTheLine",
        SIZE,
        "    slope = median(slopes)\n",
        "    slope = sum(slopes) / len(slopes)\n",
        (f"{OF_SIZE} -k single_slow_epoch",),
    ),
    Mutant(
        "FirstEpochStartsWorkers",
        SIZE,
        "        if self._has_begun:\n",
        "        if True:\n",
        (f"{OF_SIZE} -k first_epoch_says_nothing",),
    ),
    Mutant(
        "DrySourceDoesNotShrinkTheLimit",
        SIZE,
        "if is_on_time and last < _SHARE_OF_LIMIT * self.rows:",
        "if False:",
        (f"{OF_SIZE} -k source_that_ran_dry",),
    ),
    Mutant(
        "BusyTimeAndNotWallTime",
        EPOCHS,
        "self._size.after(report.rows if last.rows is None else last.rows, report.busy_s)",
        "self._size.after(report.rows if last.rows is None else last.rows, elapsed_s)",
        (f"{OF_EPOCHS} -k report_of_spark_is_used",),
    ),
    Mutant(
        "KeptTriggerIsNotBusy",
        EPOCHS,
        "            if elapsed_s > trigger_s:\n",
        "            if True:\n",
        (f"{OF_EPOCHS} -k kept_trigger_without_a_report",),
    ),
    Mutant(
        "ReportOfTheLastEpochOnly",
        EPOCHS,
        "if report is not None and report.end == start:",
        "if report is not None:",
        (f"{OF_EPOCHS} -k report_of_an_earlier_epoch",),
    ),
    Mutant(
        "PauseIsNotBusy",
        READER,
        'times.get("triggerExecution", 0) - times.get("latestOffset", 0)',
        'times.get("triggerExecution", 0)',
        ("pipeline/spark/test_busy_listener.py -k wait_in_latest_offset",),
    ),
    Mutant(
        "UnknownSizesShareAnEpoch",
        EPOCHS,
        "        return self._with_more_of_unknown_size(plan)\n",
        "        return plan\n",
        (f"{OF_EPOCHS} -k unknown_size_share_an_epoch",),
    ),
)

PLANS = (
    Mutant(
        "PausePlansNothing",
        EPOCHS,
        "        if self._control.reason() is not None:\n            must_not_end",
        "        if False:\n            must_not_end",
        (f"{OF_EPOCHS} -k pause_returns_the_start",),
    ),
    Mutant(
        "PauseWaitsUnderAvailableNow",
        EPOCHS,
        "must_not_end = self._ends_now or everything",
        "must_not_end = False",
        (f"{OF_EPOCHS} -k would_end_the_query_is_waited_for",),
    ),
    Mutant(
        "AvailableNowEndsAtWhatWasThere",
        EPOCHS,
        "        if self._ends_now and not self._source.bounded:\n",
        "        if False:\n",
        (f"{OF_EPOCHS} -k ends_at_what_was_there",),
    ),
    Mutant(
        "ReplayHasTheSameSplits",
        EPOCHS,
        "            splits = self._source.between(start, end)\n",
        "            splits = self._source.plan(start, Limit(1, 1)).splits\n",
        (f"{OF_EPOCHS} -k replayed_after_a_restart",),
    ),
    Mutant(
        "PositionTextsAreSorted",
        EPOCHS,
        "        result: Position = json.loads(self._text(position))\n",
        "        result: Position = position\n",
        (f"{OF_EPOCHS} -k position_texts_do_not_depend",),
    ),
    Mutant(
        "IdleSourceIsAskedSeldom",
        EPOCHS,
        "_BETWEEN_EMPTY_PLANS_S = 0.1",
        "_BETWEEN_EMPTY_PLANS_S = 0.0",
        (f"{OF_EPOCHS} -k empty_source_is_not_asked",),
    ),
    Mutant(
        "HandlesStayInTheReader",
        READER,
        'return {"_settings": self._settings}',
        "return self.__dict__",
        ("pipeline/spark/test_reader_pickles.py",),
    ),
    Mutant(
        "LimitIsNotThatOfOnce",
        READER,
        "return ReadMaxRows(self._settings.epochs.goal.first_rows)",
        "return ReadAllAvailable()",
        ("pipeline/spark/test_reader_pickles.py -k default_limit",),
    ),
    Mutant(
        "OneReaderOfSeveralTrimsNothing",
        EPOCHS,
        "        if self._settings.commits:\n",
        "        if True:\n",
        (f"{OF_EPOCHS} -k source_of_several_queries",),
    ),
    Mutant(
        "TrimOneEpochLate",
        EPOCHS,
        "        self._running = _Running(to, len(splits), rows_of(splits), self._clock())\n",
        "        self._running = _Running(to, len(splits), rows_of(splits), self._clock())\n"
        "        self._source.commit(end)\n",
        ("pipeline/spark/test_trimming.py",),
    ),
)

SPARK_MUTANTS = (*SIZES, *PLANS)
