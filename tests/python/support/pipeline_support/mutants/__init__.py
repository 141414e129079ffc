"""Pipelines, ledgers and groups on Kafka without one of their rules: a table, and its tests."""

from pipeline_support.mutants.kafka_rules import KAFKA_MUTANTS
from pipeline_support.mutants.ledger_rules import LEDGER_MUTANTS
from pipeline_support.mutants.mutant import Mutant
from pipeline_support.mutants.runner_rules import RUNNER_MUTANTS
from pipeline_support.mutants.signal_rules import SIGNAL_MUTANTS
from pipeline_support.mutants.source_rules import SOURCE_MUTANTS
from pipeline_support.mutants.spark_rules import SPARK_MUTANTS

MUTANTS: tuple[Mutant, ...] = (
    *RUNNER_MUTANTS,
    *SOURCE_MUTANTS,
    *SIGNAL_MUTANTS,
    *SPARK_MUTANTS,
    *LEDGER_MUTANTS,
    *KAFKA_MUTANTS,
)
