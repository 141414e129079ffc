"""Rules of a run in one process: room, order, pauses and cuts."""

from pipeline_support.mutants.mutant import Mutant

GATE = "pipeline/runner/stage.py"
SOURCE_THREAD = "pipeline/runner/source.py"
CONTROL = "pipeline/runner/source.py"
CUTS = "pipeline/runner/cuts.py"
WORKER = "pipeline/runner/stage.py"
STAGE = "pipeline/runner/stage.py"
ASSEMBLY = "pipeline/runner/assembly.py"
CHECKPOINT = "pipeline/runner/checkpoint.py"
RECOVERY = "pipeline/runner/checkpoint.py"

ROOM = (
    Mutant(
        "BytesAreCounted",
        GATE,
        "self.line_up(rows, size, worker, lock)",
        "self.line_up(rows, 0, worker, lock)",
        ("pipeline/runner/test_gate.py -k bytes_up_to_the_limit_exactly",),
    ),
    Mutant(
        "RowsOfAWorkerAreCounted",
        GATE,
        "self.line_up(rows, size, worker, lock)",
        "self.line_up(1, size, worker, lock)",
        ("pipeline/runner/test_gate.py -k rows_of_a_worker_up_to_the_limit_exactly",),
    ),
    Mutant(
        "ChunkGoesToItsWorker",
        GATE,
        "self.line_up(rows, size, worker, lock)",
        "self.line_up(rows, size, None, lock)",
        ("pipeline/runner/test_gate.py -k rows_of_a_worker_up_to_the_limit_exactly",),
    ),
    Mutant(
        "FreeWaitsForARow",
        GATE,
        "        while room is None:\n",
        "        while False:\n",
        ("pipeline/runner/test_gate.py -k free_is_what_is_left_and_waits",),
    ),
    Mutant(
        "StagesShareBytes",
        ASSEMBLY,
        "settings.max_bytes // len(graph.stages)",
        "settings.max_bytes",
        ("pipeline/runner/test_memory.py -k stages_share_max_bytes_equally",),
    ),
    Mutant(
        "SinkHasRoomForTwoBatches",
        STAGE,
        "rows = max(rows, 2 * plan.sink.sink.batch_rows)",
        "pass",
        ("pipeline/runner/test_memory.py -k the_narrowest_branch_limits_plans",),
    ),
    Mutant(
        "PlanWithinTheRoom",
        SOURCE_THREAD,
        "return self.decision.limited(Limit(rows, size))",
        "return self.decision.limited(Limit(1 << 40, 1 << 50))",
        ("pipeline/runner/test_memory.py -k limits_of_plans_follow_the_room",),
    ),
    Mutant(
        "NarrowestBranchLimitsPlans",
        SOURCE_THREAD,
        "rows, size = (min(values) for values in zip(*rooms, strict=True))",
        "rows, size = rooms[-1]",
        ("pipeline/runner/test_memory.py -k the_narrowest_branch_limits_plans",),
    ),
)

ORDER = (
    Mutant(
        "KeepOrderBySourcePartition",
        STAGE,
        "(self._worker_of_partition(origin.partition), chunk, origin)",
        "(None, chunk, origin)",
        ("pipeline/runner/test_order.py -k keep_order_keeps_it_per_source_partition",),
    ),
    Mutant(
        "KeyMeetsOneWorker",
        STAGE,
        "                    partition % self.plan.workers,\n",
        "                    None,\n",
        ("pipeline/runner/test_order.py -k rows_of_a_key_meet_one_worker",),
    ),
    Mutant(
        "StateStaysWithItsPartitions",
        STAGE,
        "if self._hashes:",
        "if False:",
        ("pipeline/runner/test_order.py -k state_stays_with_its_source_partitions",),
    ),
)

PAUSES = (
    Mutant(
        "PausedSplitIsNotSkipped",
        SOURCE_THREAD,
        "                for number, split in enumerate(plan.splits):\n",
        "                for number, split in enumerate(plan.splits):\n"
        "                    if self.control.reasons:\n"
        "                        self.control.complete(split.end)\n"
        "                        continue\n",
        ("pipeline/runner/test_pauses.py -k begins_no_other_of_the_plan",),
    ),
    Mutant(
        "PauseBetweenTwoSplits",
        CONTROL,
        "lambda: self._is_stopping or not (self._reasons or self._is_held), begins=True",
        "lambda: True, begins=True",
        ("pipeline/runner/test_pauses.py -k begins_no_other_of_the_plan",),
    ),
    Mutant(
        "EveryReasonPauses",
        CONTROL,
        "each for each in self._reasons if reason is not None and each != reason",
        "each for each in () if each",
        ("pipeline/runner/test_pauses.py -k waits_while_any_reason_is_left",),
    ),
    Mutant(
        "CutTakesTheRestOfAPausedSplit",
        CONTROL,
        "lambda: self._is_stopping or self._is_held or not self._reasons, serves=False",
        "lambda: self._is_stopping or not self._reasons, serves=False",
        ("pipeline/runner/test_pauses.py -k cuts_continue_in_a_pause",),
    ),
    Mutant(
        "StopEndsAPause",
        CONTROL,
        "elif is_met():",
        "elif is_met() and not (self._is_stopping and self._reasons):",
        ("pipeline/runner/test_pauses.py -k stop_ends_a_pause",),
    ),
)

CUT = (
    Mutant(
        "PositionMovesBehindTheSplit",
        SOURCE_THREAD,
        "                    self._read(split)\n                    is_last",
        "                    self.control.complete(split.end)\n"
        "                    self._read(split)\n                    is_last",
        ("pipeline/runner/test_cuts.py -k split_in_hand",),
    ),
    Mutant(
        "HoldBeforeACut",
        CUTS,
        "            if self._holds:\n                self.hold()",
        "            if False:\n                self.hold()",
        ("pipeline/runner/test_cuts.py -k split_in_hand",),
    ),
    Mutant(
        "NoHoldWithoutNeed",
        CUTS,
        "            if self._holds:\n                self.hold()",
        "            if True:\n                self.hold()",
        ("pipeline/runner/test_cuts.py -k nothing_is_held",),
    ),
    Mutant(
        "PositionsOfTheHold",
        CUTS,
        "            if self._holds:\n                self.hold()",
        "            early = {each.name: each.control.position for each in self.sources}\n"
        "            if self._holds:\n                self.hold()\n"
        "            for each in self.sources:\n"
        "                each.control.position = early[each.name]",
        ("pipeline/runner/test_cuts.py -k split_in_hand",),
    ),
    Mutant(
        "FlushBeforeACut",
        CUTS,
        "self._all(stage, lambda worker: worker.flush(number))",
        "pass",
        ("pipeline/runner/test_exact_counts.py -k aggregate_counts_each_row_once",),
    ),
    Mutant(
        "FlushInTheOrderOfStages",
        CUTS,
        "            for stage in self._stages:\n                self._all(stage, lambda worker: "
        "worker.flush(number))",
        "            for stage in reversed(self._stages):\n                self._all(stage, lambda "
        "worker: worker.flush(number))",
        ("pipeline/runner/test_cuts.py -k flushed_by_one_stage",),
    ),
    Mutant(
        "PreparedBeforeTheSinkCommits",
        CUTS,
        "            if self._checkpoint is not None:\n"
        "                self._checkpoint.store(number, positions, state)\n"
        '            self._on_step("store")\n'
        "            for stage in self._stages:\n"
        "                if _transactional(stage) and stage.name not in skipping:\n"
        "                    self._all(stage, lambda worker: _commit(worker, number, positions))\n"
        '                    self._on_step(f"commit {stage.name}")\n',
        "            for stage in self._stages:\n"
        "                if _transactional(stage) and stage.name not in skipping:\n"
        "                    self._all(stage, lambda worker: _commit(worker, number, positions))\n"
        '                    self._on_step(f"commit {stage.name}")\n'
        "            if self._checkpoint is not None:\n"
        "                self._checkpoint.store(number, positions, state)\n"
        '            self._on_step("store")\n',
        ('pipeline/runner/test_crashes.py -k "failed_behind_a_step and commit"',),
    ),
    Mutant(
        "StateIsPartOfTheCut",
        CUTS,
        "state = self._state() if self._holds else {}",
        "state = {}",
        ("pipeline/runner/test_order.py -k state_stays_with_its_source_partitions",),
    ),
    Mutant(
        "StateIsRestored",
        WORKER,
        "            self.chain.restore(state)\n",
        "            pass\n",
        ("pipeline/runner/test_order.py -k state_stays_with_its_source_partitions",),
    ),
    Mutant(
        "CheckpointKeepsTwoCuts",
        CHECKPOINT,
        "_KEPT_CUTS = 2",
        "_KEPT_CUTS = 1",
        (
            "pipeline/test_checkpoint.py -k keeps_the_last_two_cuts",
            'pipeline/runner/test_crashes.py -k "failed_behind_a_step and store"',
        ),
    ),
    Mutant(
        "OlderCutDecides",
        RECOVERY,
        "last = min(numbers.values(), default=newest)",
        "last = max(numbers.values(), default=newest)",
        (
            "pipeline/test_recovery.py -k older_sink_decides",
            "pipeline/runner/test_crashes.py -k two_transactional_sinks",
        ),
    ),
    Mutant(
        "ReplayToTheNotedPositions",
        SOURCE_THREAD,
        "            if self._replay is not None:\n                self._read_again(*self._replay)",
        "            if self._replay is not None:\n"
        "                self.control._is_held = False\n"
        "                self.control._is_replayed = True",
        ("pipeline/runner/test_crashes.py -k two_transactional_sinks",),
    ),
    Mutant(
        "SinkWithTheCutSkipsTheReplay",
        WORKER,
        "if not (self._stage.ending.has_begun or self.skips):",
        "if not self._stage.ending.has_begun:",
        ("pipeline/runner/test_crashes.py -k two_transactional_sinks",),
    ),
    Mutant(
        "SinkWithTheCutDoesNotCommitAgain",
        CUTS,
        "if _transactional(stage) and stage.name not in skipping:",
        "if _transactional(stage):",
        ("pipeline/runner/test_crashes.py -k two_transactional_sinks",),
    ),
    Mutant(
        "TrimBehindTheCut",
        CUTS,
        '            self._on_step("positions")\n',
        '            self._on_step("positions")\n'
        "            for source in self.sources:\n"
        "                source.source.commit(positions[source.name])\n",
        ("pipeline/runner/test_cuts.py -k trims_nothing_that_a_sink_lacks",),
    ),
    Mutant(
        "LateCutIsReported",
        CUTS,
        "return stage.results(stage.order(what), self._report, LATE_S)",
        "return stage.results(stage.order(what), lambda: None, LATE_S)",
        ("pipeline/runner/test_hangs.py -k cut_that_waits_names_the_stage",),
    ),
    Mutant(
        "EffectsAndCutTogether",
        "pipeline/sinks.py",
        "            if (stored or 0) != cut - 1:",
        "            if False:",
        ("pipeline/sinks/test_pipeline_metrics_sink.py -k not_the_next_one",),
    ),
    Mutant(
        "PushIsConfirmedByACut",
        "pipeline/sources/push.py",
        "                self._waiting.append(pushed)\n                return pushed.done\n",
        "                self._waiting.append(pushed)\n"
        "                early = Future()\n"
        "                early.set_result(None)\n"
        "                return early\n",
        ("pipeline/sources/test_push_source.py -k fails_refuses_what_no_cut_has",),
    ),
    Mutant(
        "NothingIsHandledAfterAnError",
        WORKER,
        "if not stage.ending.has_begun:\n                        self._emit(",
        "if True:\n                        self._emit(",
        ("pipeline/runner/test_failures.py -k nothing_is_handled_after_the_first_error",),
    ),
)

RUNNER_MUTANTS = (*ROOM, *ORDER, *PAUSES, *CUT)
