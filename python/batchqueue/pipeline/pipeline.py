"""`Pipeline`: a graph with a name, and the settings that all of its runs share."""

from batchqueue.exceptions import ConfigError
from batchqueue.pipeline.contract import Source
from batchqueue.pipeline.graph import Flow, Graph, check_name
from batchqueue.pipeline.stage_config import StageConfig
from batchqueue.policies import check_finite

_LEAST_BYTES = 1 << 20


class Pipeline:
    """A graph of sources, operators and sinks, which runs in this process or on Spark."""

    def __init__(
        self,
        name: str,
        *,
        checkpoint: str | None = None,
        stage: StageConfig | None = None,
        cut_interval_s: float = 5,
        max_bytes: int = 256 << 20,
    ) -> None:
        """Begin with an empty graph.

        Args:
            name: The name in checkpoints, statistics and logs; printable characters.
            checkpoint: A directory for the positions and the state of the last cuts. It is made if
                it is missing, and belongs to one pipeline. Default: None, a run starts at the
                beginning of its sources, or where a transactional sink says.
            stage: The settings of stages that are given none. Default: None,
                `StageConfig()`.
            cut_interval_s: Seconds between two cuts, at least 0.1. After a crash, what came after
                the last cut is read again. Default: 5.
            max_bytes: The most bytes of data in all stages together, at least 1 MB; each may hold
                an equal share of it. One chunk always passes, however large. Default: 256 MB.

        Raises:
            ConfigError: A setting is invalid.
        """
        check_name(name)
        check_finite("cut_interval_s", cut_interval_s, 0.1)
        if not isinstance(max_bytes, int) or max_bytes < _LEAST_BYTES:
            raise ConfigError(f"max_bytes is {max_bytes!r}; give an int of at least {_LEAST_BYTES}")
        if not (stage is None or isinstance(stage, StageConfig)):
            raise ConfigError(f"stage is {stage!r}; give a StageConfig")
        if not (checkpoint is None or (isinstance(checkpoint, str) and checkpoint)):
            raise ConfigError(f"checkpoint is {checkpoint!r}; give the path of a directory")
        self.name = name
        self.checkpoint = checkpoint
        self.stage_config = stage or StageConfig()
        self.cut_interval_s = cut_interval_s
        self.max_bytes = max_bytes
        self.graph = Graph()

    def source(self, source: Source, *, name: str | None = None) -> Flow:
        """Begin with a source.

        Args:
            source: What to read, for instance `FileSource("orders/*.parquet")`.
            name: Its name in checkpoints and statistics. Default: None, the source's own.

        Raises:
            GraphError: `source` is not a source, or the name is in use.
        """
        return Flow(self.graph, self.graph.add_source(source, name))

    def __repr__(self) -> str:
        return f"Pipeline({self.name!r})"
