"""Rules of groups on Kafka: who may commit, and with which token."""

from pipeline_support.mutants.mutant import Mutant

OWNERSHIP = "groups/kafka/test_ownership.py"
WORKERS = "groups/kafka/test_kafka_workers.py"
CONSUMER = "groups/kafka/test_consumer_thread.py"
TRANSACTIONS = "groups/kafka/test_kafka_transactions.py"
PROCESSES = "groups/kafka/test_kafka_chaos.py"
CHAOS = "groups/kafka/test_kafka_transactions_chaos.py"
NETWORK = "groups/kafka/test_kafka_network.py"
CLIENTS = "groups/kafka/test_kafka_clients.py"

KAFKA_MUTANTS = (
    Mutant(
        "MarkInsideABatchHoldsUpNoRelease",
        "groups/worker/held.py",
        "self.is_idle and (is_stuck or ",
        "self.is_idle and (",
        ("groups/worker/test_worker_records.py -k although_a_batch",),
    ),
    Mutant(
        "NoCommitInsideABatch",
        "groups/worker/held.py",
        "if mark is not None and not self._is_inside_batch(mark.offset):",
        "if mark is not None:",
        ("groups/worker/test_worker_records.py -k between_the_records",),
    ),
    Mutant(
        "CommitUnderItsToken",
        "groups/kafka/ownership.py",
        "return owned if owned and (owned.token, owned.session) == (token, session) else None",
        "return owned",
        (f"{OWNERSHIP} -k assignment_of_before",),
    ),
    Mutant(
        "LossEndsCommits",
        "groups/kafka/ownership.py",
        "self.owned.pop(partition, None)",
        "self.owned.get(partition)",
        (
            f"{OWNERSHIP} -k until_it_is_gone",
            f"{OWNERSHIP} -k goes_back",
            f"{PROCESSES} -k 'stopped_worker and consumer'",
        ),
    ),
    Mutant(
        "OpenBeforeCommits",
        "groups/kafka/ownership.py",
        "and owned.is_open",
        "",
        (f"{OWNERSHIP} -k not_open",),
    ),
    Mutant(
        "TokensGrowWhateverTheClock",
        "groups/kafka/ownership.py",
        "max(self._last_token + 1, seen + 1, now_us)",
        "now_us",
        (f"{OWNERSHIP} -k clock_that_was_set_back", f"{OWNERSHIP} -k above_the_one_that_refused"),
    ),
    Mutant(
        "TokenAboveTheStored",
        "groups/kafka/connection.py",
        "if stored > token or (stored == token and not (owned and owned.is_open)):",
        "if False:",
        (f"{WORKERS} -k token_is_above_the_stored_one",),
    ),
    Mutant(
        "RevokeWaitsForHandlers",
        "groups/kafka/consumer.py",
        "while not (all(owned.is_released for owned in rest) or self._is_closing):",
        "while False:",
        (f"{WORKERS} -k behind_the_handler_that_is_inside",),
    ),
    Mutant(
        "LostMembershipEndsRevokes",
        "groups/kafka/consumer.py",
        "or not self.commits.is_member:",
        "or False:",
        (f"{CONSUMER} -k continued_without_it",),
    ),
    Mutant(
        "LeaveEndsRevokes",
        "groups/kafka/consumer.py",
        "or self._is_closing):",
        "or False):",
        (f"{WORKERS} -k does_not_wait_for_a_revoke",),
    ),
    Mutant(
        "ReadUnderItsToken",
        "groups/kafka/consumer.py",
        "waiting is not None and waiting.token == fetch.token",
        "True",
        (f"{CONSUMER} -k earlier_token",),
    ),
    Mutant(
        "BeginWhatIsNotRevoked",
        "groups/kafka/consumer.py",
        "is owned and not owned.is_revoked",
        "is owned",
        (f"{CONSUMER} -k stays_begins_while",),
    ),
    Mutant(
        "CallsDuringRevokes",
        "groups/kafka/consumer.py",
        "                self._answer(consumer)\n                with self.changed:",
        "                with self.changed:",
        (f"{WORKERS} -k behind_the_handler_that_is_inside",),
    ),
    Mutant(
        "FetcherStaysDuringRevokes",
        "groups/kafka/consumer.py",
        "if left and not self._is_revoking:",
        "if left:",
        (f"{CONSUMER} -k while_a_revoke_waits",),
    ),
    Mutant(
        "RevokesAreServedBefore",
        "groups/kafka/consumer.py",
        "            if self._poll(consumer, 0):\n                self._keep([])\n",
        "",
        (f"{CONSUMER} -k before_a_revoke_is_served",),
    ),
    Mutant(
        "CallbacksWaitForTheLastCommit",
        "groups/kafka/consumer.py",
        "while self.commits.is_under_way and not self._is_ending:",
        "while False:",
        (f"{CONSUMER} -k after_the_reply",),
    ),
    Mutant(
        "CallbackThatPolledEndsItsCall",
        "groups/kafka/consumer.py",
        "        if has_polled:\n",
        "        if False:\n",
        (f"{CONSUMER} -k after_the_reply",),
    ),
    Mutant(
        "ConsumeBetweenCommitsOnly",
        "groups/kafka/consumer.py",
        "            if self.commits.is_under_way:\n",
        "            if False:\n",
        (f"{CONSUMER} -k one_by_one",),
    ),
    Mutant(
        "WaitingRecordsAreBounded",
        "groups/kafka/consumer.py",
        "part * records > _TOTAL_RECORDS",
        "False",
        (f"{CONSUMER} -k share_the_memory",),
    ),
    Mutant(
        "OneCommitAtATime",
        "groups/kafka/commits.py",
        "while self._sent is None and (asked",
        "while (asked",
        (f"{CONSUMER} -k without_a",),
    ),
    Mutant(
        "CommitWithoutAReplyIsLeftBehind",
        "groups/kafka/connection.py",
        "if self._consumer.commits.has_waited(long):",
        "if False:",
        (f"{NETWORK} -k joins_anew",),
    ),
    Mutant(
        "ConsumerWithoutRepliesIsLeftBehind",
        "groups/kafka/connection.py",
        "elif self._has_been_silent(long) and self._age_of_topic < self._lease_s:",
        "elif False:",
        (f"{CLIENTS} -k 'left_out and classic'",),
    ),
    Mutant(
        "SilentClientIsReplaced",
        "groups/kafka/server.py",
        "self._connect()  # it may",
        "None  # it may",
        (f"{CLIENTS} -k gets_no_replies",),
    ),
    Mutant(
        "ClientThatIsAnsweredStays",
        "groups/kafka/server.py",
        "self._note_reply(error.args[0].name() not in _NO_REPLY)",
        "self._note_reply(False)",
        (f"{CLIENTS} -k gets_no_replies",),
    ),
    Mutant(
        "FailureOfACommitIsOfItsCaller",
        "groups/kafka/commits.py",
        "        except Exception as error:",
        "        except ZeroDivisionError as error:",
        (f"{CONSUMER} -k cannot_even_be_sent",),
    ),
    Mutant(
        "ClientEndsOnAnotherThread",
        "groups/kafka/server.py",
        "threading.Thread(target=clients.clear, daemon=True).start()",
        "clients.clear()",
        (f"{CLIENTS} -k garbage",),
    ),
    Mutant(
        "OffsetsAreValid",
        "groups/kafka/server.py",
        "if offset == OFFSET_INVALID:",
        "if False:",
        (f"{CLIENTS} -k invalid_offset",),
    ),
    Mutant(
        "EarlierGenerationIsOfAMember",
        "groups/kafka/commits.py",
        "_name_of(error) == GONE",
        "_name_of(error) in (GONE, 'ILLEGAL_GENERATION')",
        (f"{CONSUMER} -k generation_before",),
    ),
    Mutant(
        "MarkersCountAsDone",
        "groups/kafka/commits.py",
        "return max(waiting.end, request.offset + 1)",
        "return request.offset + 1",
        (f"{CONSUMER} -k does_not_see_at_the_end",),
    ),
    Mutant(
        "StoppedFetcherStartsAgain",
        "groups/kafka/consumer.py",
        "if left and not self._is_revoking:",
        "if False:",
        (f"{WORKERS} -k overtakes_a_running_worker",),
    ),
    Mutant(
        "OffsetsInTransactionsOnly",
        "groups/kafka/commits.py",
        "if self._transactions is not None:\n                generation",
        "if self._transactions is not None and chosen[0].records:\n                generation",
        (f"{TRANSACTIONS} -k without_a_transaction",),
    ),
    Mutant(
        "GenerationOfTheOwner",
        "groups/kafka/commits.py",
        "generation = consumer.consumer_group_metadata()",
        # That of a consumer which never joined: the broker then checks nothing.
        "used = self._transactions\n"
        "                bootstrap = used._settings['bootstrap.servers']\n"
        "                plain = {'bootstrap.servers': bootstrap, 'group.id': used._group}\n"
        "                kept = self.__dict__.setdefault('kept', []) or [type(consumer)(plain)]\n"
        "                self.__dict__['kept'] = kept\n"
        "                generation = kept[0].consumer_group_metadata()",
        (f"{CHAOS} -k 'stopped_in_a_transaction and offsets-60000'",),
    ),
    Mutant(
        "HeartbeatSendsNoRecords",
        "groups/kafka/commits.py",
        "replace(request, records=())",
        "request",
        (f"{TRANSACTIONS} -k without_a_transaction",),
    ),
    Mutant(
        "UnknownEndBeginsAnew",
        "groups/kafka/transactions.py",
        "            return {}\n",
        "            return self._errors(requests, reason)\n",
        (f"{TRANSACTIONS} -k unknown",),
    ),
    Mutant(
        "UnknownEndEndsTheToken",
        "groups/kafka/commits.py",
        "                    self._ownership.reopen(owned)\n",
        "                    pass\n",
        (f"{CONSUMER} -k end_is_unknown",),
    ),
    Mutant(
        "PendingOffsetIsAwaited",
        "groups/kafka/connection.py",
        'self._reader = server.reader(group, "read_committed")',
        'self._reader = server.reader(group, "read_uncommitted")',
        (f"{TRANSACTIONS} -k holds_its_offset",),
    ),
    Mutant(
        "PendingOffsetHoldsUpItsPartitionOnly",
        "groups/kafka/connection.py",
        "            if self._reader is None:\n                raise\n",
        "            raise\n",
        (f"{TRANSACTIONS} -k holds_its_offset",),
    ),
    Mutant(
        "MonitorReadsWhatIsStored",
        "groups/kafka/streams.py",
        'server.reader(group, "read_uncommitted")',
        'server.reader(group, "read_committed")',
        (f"{TRANSACTIONS} -k monitor",),
    ),
    Mutant(
        "FailedRecordAborts",
        "groups/kafka/transactions.py",
        "raise _RecordError(failure) from None",
        "break",
        (f"{TRANSACTIONS} -k 'is_too_large and not topic'",),
    ),
    Mutant(
        "FailedRecordHoldsUpItsPartitionOnly",
        "groups/kafka/transactions.py",
        "refused if each.partition in blamed else again",
        "refused",
        (f"{TRANSACTIONS} -k missing_topic",),
    ),
    Mutant(
        "FailedProducerIsReplaced",
        "groups/kafka/transactions.py",
        "        except KafkaException:\n            self._producer = None\n",
        "        except KafkaException:\n            pass\n",
        (f"{TRANSACTIONS} -k fenced",),
    ),
    Mutant(
        "RetriableCallsAreRepeated",
        "groups/kafka/transactions.py",
        "if not error.args[0].retriable() or",
        "if True or",
        (f"{TRANSACTIONS} -k repeated",),
    ),
    Mutant(
        "RecordsOfTheMark",
        "groups/worker/held.py",
        "if each.last <= mark.offset\n                        for record",
        "if True\n                        for record",
        (f"{TRANSACTIONS} -k of_the_mark",),
    ),
    Mutant(
        "RecordsOfTheAttemptThatReturned",
        "groups/worker/lanes.py",
        "if batch.sent:",
        "if False:",
        (f"{TRANSACTIONS} -k stored_with",),
    ),
)
