"""`StagePartitions`: how many partitions a stage has, in which group, and where they are."""

from collections.abc import Collection, Mapping

from batchqueue.groups.record import group_id, partition_count
from batchqueue.pipeline.backpressure.states import PartitionState, StateMachine, partition_machine
from batchqueue.pipeline.stage_config import StageConfig


class StagePartitions:
    """The partitions of a stage, from the start of the stage to its end.

    The runner of the stage says what happens; this says which state that is.

    Attributes:
        count: The number of partitions.
        machine: The state.

    Example:
        >>> partitions = StagePartitions("revenue", "totals", StageConfig(max_workers=4))
        >>> partitions.count, partitions.group, partitions.machine.state.value
        (4, 'revenue_totals', 'multi_partition')
    """

    def __init__(
        self,
        pipeline: str,
        stage: str,
        config: StageConfig,
        machine: StateMachine[PartitionState] | None = None,
        *,
        count: int | None = None,
    ) -> None:
        """Compute the number of partitions.

        Args:
            pipeline: The name of the pipeline.
            stage: The name of the stage.
            config: Its settings.
            machine: The state, before the start. Default: None, a new one.
            count: The number of partitions, if the graph decides it. Default: None,
                `partition_count` of the config, or one per worker up to `max_workers`. How many
                workers run now does not matter.
        """
        self.machine = machine or partition_machine(stage)
        self.count = count or partition_count(config.partition_count, config.max_workers)
        self._names = pipeline, stage
        self._min_workers = config.min_workers
        self._members: frozenset[str] = frozenset()
        kind = (
            PartitionState.SINGLE_PARTITION if self.count == 1 else PartitionState.MULTI_PARTITION
        )
        self.machine.advance(PartitionState.COMPUTING_PARTITION_COUNT, kind)

    @property
    def group(self) -> str:
        """The name of the group of workers that shares them, where these are processes.

        Raises:
            ConfigError: A name cannot be part of the name of a group.
        """
        return group_id(*self._names)

    def queue_created(self) -> None:
        """Take note that the queue or topic exists, with `count` partitions."""
        self.machine.advance(PartitionState.QUEUE_CREATED)

    def workers_spawning(self) -> None:
        """Take note that workers are started."""
        self.machine.advance(PartitionState.WORKERS_SPAWNING)

    def observe(self, members: Collection[str], owners: Mapping[int, str | None]) -> None:
        """Take note of who has which partition.

        The stage runs as soon as `min_workers` share all partitions. When the members are others
        than before, or a partition has no owner among them, it rebalances until they share again.

        Args:
            members: The names of the workers.
            owners: The owner of each partition; None if it has none.
        """
        present = frozenset(members)
        shared = set(owners.values())
        is_shared = bool(owners) and shared <= present
        is_shared = is_shared and len(shared) == min(len(present), len(owners))
        if self.machine.state is PartitionState.WORKERS_SPAWNING:
            if not is_shared or len(present) < self._min_workers:
                return
            self.machine.advance(PartitionState.RUNNING)
        elif self.machine.state is PartitionState.RUNNING and (
            present != self._members or not is_shared
        ):
            self.machine.advance(PartitionState.REBALANCING)
        if self.machine.state is PartitionState.REBALANCING and is_shared:
            self.machine.advance(PartitionState.RUNNING)
        self._members = present

    def stop(self) -> None:
        """Take note that the stage is to end."""
        self.machine.advance(PartitionState.STOPPING)

    def stopped(self) -> None:
        """Take note that the stage has ended."""
        self.machine.advance(PartitionState.STOPPED)
