"""Rules of groups on Kafka: who may commit, and with which token."""

from pipeline_support.mutants.mutant import Mutant

OWNERSHIP = "groups/kafka/test_ownership.py"
WORKERS = "groups/kafka/test_kafka_workers.py"
CONSUMER = "groups/kafka/test_consumer_thread.py"

KAFKA_MUTANTS = (
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
        (f"{OWNERSHIP} -k until_it_is_gone", f"{OWNERSHIP} -k goes_back"),
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
        "or not self._is_member:",
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
        "                self._carry_out(consumer)\n                with self.changed:",
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
        "self._poll(consumer, 0)",
        "None",
        (f"{CONSUMER} -k before_a_revoke_is_served",),
    ),
    Mutant(
        "EarlierGenerationIsOfAMember",
        "groups/kafka/consumer.py",
        "error.name() == GONE",
        "error.name() in (GONE, 'ILLEGAL_GENERATION')",
        (f"{CONSUMER} -k generation_before",),
    ),
    Mutant(
        "MarkersCountAsDone",
        "groups/kafka/consumer.py",
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
)
