"""Rules of stores and of the Spark sink: what the ledger refuses, and copies that are whole."""

from pipeline_support.mutants.mutant import Mutant

REPLACED_FILES = "outputs/test_sqlite_replaced_file.py"
COMMANDS = "cli/store/test_store_commands.py"
RESTORE = "outputs/test_sqlite_restore.py"
COMMITS = "spark/commit/test_commit.py"

STORES = (
    Mutant(
        "LogContinuesItsFile",
        "outputs/sqlite_store.py",
        "if in_file in (states",
        "if True or in_file in (states",
        (f"{REPLACED_FILES} -k refused", f"{COMMANDS} -k restore_resolves"),
    ),
    Mutant(
        "TransactionsNameTheirState",
        "outputs/sqlite_store.py",
        "if transaction.has_changes:",
        "if False:",
        (f"{REPLACED_FILES} -k refused",),
    ),
    Mutant(
        "LogMayBePartlyInTheFile",
        "outputs/sqlite_store.py",
        "(states[0].previous, *(state.name for state in states))",
        "(states[0].previous,)",
        (f"{REPLACED_FILES} -k part_of_its_log",),
    ),
    Mutant(
        "FileOfAKilledCheckpointHasAState",
        "outputs/sqlite_store.py",
        "frame = next(frames, None)",
        "frame = None",
        (f"{REPLACED_FILES} -k killed_is_opened",),
    ),
    Mutant(
        "RestoreWaitsForNobody",
        "outputs/sqlite_store.py",
        "fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, *_SHARED_BYTES)",
        "pass",
        (f"{RESTORE} -k kept_while_another_process",),
    ),
    Mutant(
        "RestorePutsTheLogAside",
        "outputs/sqlite_store.py",
        'for suffix in ("-wal", "-journal"):',
        "for suffix in ():",
        (f"{COMMANDS} -k restore_resolves",),
    ),
    Mutant(
        "RestoreFillsTheLog",
        "outputs/sqlite_store.py",
        "if not states or any(commit.is_whole for commit in commits):",
        "if not states:",
        (f"{RESTORE} -k whatever_state_that_has",),
    ),
    Mutant(
        "RestoreKeepsTheLastCommit",
        "outputs/sqlite_store.py",
        "if status == sqlite3.SQLITE_OK and not aside.exists():",
        "if status == sqlite3.SQLITE_DONE:",
        (f"{RESTORE} -k former_content",),
    ),
)

EPOCHS = (
    Mutant(
        "EpochOnceInARun",
        "spark/driver/metrics_writer.py",
        "if before is not None and before[:2] == write[:2]:",
        "if False:",
        ("spark/writer/test_epochs_of_a_run.py -k two_jobs_under_one_sink",),
    ),
    Mutant(
        "ReplayHasAnotherRun",
        "spark/driver/metrics_writer.py",
        'return f"{run_id} {java}"',
        'return ""',
        ("spark/writer/test_epochs_of_a_run.py -k replayed_in_another_run",),
    ),
    Mutant(
        "FailedWriteMayBeRepeated",
        "spark/driver/metrics_writer.py",
        "    except BaseException:",
        "    except GeneratorExit:",
        ("spark/writer/test_epochs_of_a_run.py -k may_be_repeated",),
    ),
    Mutant(
        "ReplayHasTheSameRows",
        "spark/commit/commit.py",
        "if options.on_changed_epoch is None:",
        "if False:",
        (f"{COMMITS} -k comes_again_with_other_rows",),
    ),
    Mutant(
        "ReplayHasTheSameContents",
        "spark/commit/commit.py",
        'if has_as_many and not differ(recorded.get("contents"), contents):',
        "if has_as_many:",
        (f"{COMMITS} -k 'as_many_other_rows and parquet'",),
    ),
    Mutant(
        "FunctionsForgetNothing",
        "spark/commit/commit.py",
        'return {**now, "aggregations": before["aggregations"]}',
        "return dict(now)",
        ("spark/commit/test_changed_jobs.py -k job_of_functions",),
    ),
    Mutant(
        "BatchesLeaveStreamsAlone",
        "spark/commit/commit.py",
        "if streams and not options.is_named:",
        "if False:",
        ("spark/commit/test_before_l1.py -k leaves_the_sink_of_a_stream",),
    ),
    Mutant(
        "ShardsOrNone",
        "spark/commit/commit.py",
        'summaries = getattr(job.store, "summaries", None)',
        "summaries = None",
        ("spark/writer/test_batches_of_a_sink.py -k 'refused_where_one and parquet'",),
    ),
)

LEDGER_MUTANTS = STORES + EPOCHS
