"""Rules of sources and chunks: what a plan has, and what a position promises."""

from pipeline_support.mutants.mutant import Mutant

PLANNING = "pipeline/sources/splits.py"
LANCE = "pipeline/sources/lance.py"
HISTORY = "pipeline/sources/lance.py"
KAFKA = "pipeline/sources/kafka.py"
KAFKA_TESTS = "pipeline/sources/test_kafka_source.py"
ICEBERG = "pipeline/sources/iceberg.py"
LISTING = "pipeline/sources/file_listings.py"
CONTRACT = "pipeline/contract.py"
CUTTER = "pipeline/chunks.py"

SOURCE_MUTANTS = (
    Mutant(
        "PlanWithinItsLimit",
        PLANNING,
        "if taken and (rows > limit.rows or size > limit.bytes):",
        "if False:",
        ("pipeline/sources/test_planning.py -k longest_beginning_within_its_limit",),
    ),
    Mutant(
        "PlanHasAtLeastOneSplit",
        PLANNING,
        "if taken and (rows > limit.rows or size > limit.bytes):",
        "if rows > limit.rows or size > limit.bytes:",
        ("pipeline/sources/test_planning.py -k longest_beginning_within_its_limit",),
    ),
    Mutant(
        "UnknownSizeIsAlone",
        PLANNING,
        "            taken += [] if taken else [step]\n            break\n",
        "            taken.append(step)\n            continue\n",
        ("pipeline/sources/test_planning.py -k longest_beginning_within_its_limit",),
    ),
    Mutant(
        "WhatIsBeforeAnErrorIsRead",
        PLANNING,
        "            if taken:\n                break\n            raise\n",
        "            raise\n",
        ("pipeline/sources/test_planning.py -k comes_before_an_error",),
    ),
    Mutant(
        "PositionIsJson",
        CONTRACT,
        "    if restored != position:",
        "    if False:",
        ("pipeline/test_pipeline_errors.py -k must_come_back_from_a_checkpoint",),
    ),
    Mutant(
        "PositionIsSmall",
        CONTRACT,
        "    if size >= MAX_POSITION_BYTES:",
        "    if False:",
        ("pipeline/test_pipeline_errors.py -k must_be_smaller_than_64_kb",),
    ),
    Mutant(
        "ListOfFilesIsFrozen",
        LISTING,
        "    if listing.mark == mark:\n        return listing\n    newest",
        "    if True:\n        return listing\n    newest",
        ("pipeline/sources/test_file_source_listing.py -k came_later_are_left_out",),
    ),
    Mutant(
        "PositionFitsTheListOfFiles",
        "pipeline/sources/files.py",
        "if place.file > len(listing.files) or place.at != listing.at(place.file, place.piece):",
        "if False:",
        ("pipeline/sources/test_file_source_listing.py -k position_of_another_source",),
    ),
    Mutant(
        "ParquetReadsNothingAhead",
        "pipeline/sources/file_formats.py",
        "pre_buffer=False, buffer_size=_BUFFER_BYTES",
        "pre_buffer=True",
        ("pipeline/sources/test_file_source_sizes.py -k paused_reader_of_a_large_file",),
    ),
    Mutant(
        "LanceReadsItsVersion",
        LANCE,
        "version = self._history.at(number)\n        columns",
        "version = self._history.at(self._history.newest())\n        columns",
        ("pipeline/sources/test_lance_source.py -k one_version_is_read",),
    ),
    Mutant(
        "LanceSplitsEndAtMultiples",
        LANCE,
        "end = min(rows, row - row % self._split_rows + self._split_rows)",
        "end = min(rows, row + self._split_rows)",
        ("pipeline/sources/test_lance_source.py -k splits_end_at_multiples",),
    ),
    Mutant(
        "LanceChangedRowsAreAnError",
        LANCE,
        "                history.check_change(version, later, self._on_change)\n",
        "                pass\n",
        ("pipeline/sources/test_lance_changes.py -k changed_rows_are_an_error",),
    ),
    Mutant(
        "LanceVersionInUseIsTagged",
        LANCE,
        "            self._history.protect(self._tag, version.number)\n        return",
        "            pass\n        return",
        ("pipeline/sources/test_lance_changes.py -k tagged_until_the_end",),
    ),
    Mutant(
        "IcebergChangedRowsAreAnError",
        ICEBERG,
        "            if self._history.appends(later, self._on_change):\n                yield from",
        '            if self._history.appends(later, "skip"):\n                yield from',
        ("pipeline/sources/test_iceberg_changes.py -k changed_rows_are_an_error",),
    ),
    Mutant(
        "IcebergTableIsTheSame",
        ICEBERG,
        '        if position["table"] != uuid:',
        "        if False:",
        ("pipeline/sources/test_iceberg_changes.py -k table_made_again",),
    ),
    Mutant(
        "LargeRowIsAlone",
        CUTTER,
        "return max(fitting, 1)",
        "return max(fitting, 2)",
        ("pipeline/test_chunk.py -k row_larger_than_the_bound_is_alone",),
    ),
    Mutant(
        "KafkaPartitionsTakeTurns",
        KAFKA,
        "number = (place.turn + step) % len(ends)",
        "number = step % len(ends)",
        (f"{KAFKA_TESTS} -k long_one_keeps_none_waiting",),
    ),
    Mutant(
        "KafkaSplitEndsAtItsOffset",
        "groups/kafka/reader.py",
        "waiting.give_back(rest)",
        "pass",
        (f"{KAFKA_TESTS} -k aborted_records",),
    ),
    Mutant(
        "KafkaTopicIsTheSame",
        KAFKA,
        "if found.id != place.topic:",
        "if False:",
        (f"{KAFKA_TESTS} -k created_again",),
    ),
    Mutant(
        "KafkaRemovedRecordsAreAnError",
        KAFKA,
        "if not self._skips:",
        "if False:",
        (f"{KAFKA_TESTS} -k removed_between_plan_and_read",),
    ),
)
