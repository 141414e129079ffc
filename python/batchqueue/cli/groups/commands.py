"""The commands of `batchqueue groups`."""

from batchqueue.cli.command import command_group
from batchqueue.cli.groups.drain import DRAIN
from batchqueue.cli.groups.lag import LAG
from batchqueue.cli.groups.log import LOG
from batchqueue.cli.groups.redrive import REDRIVE
from batchqueue.cli.groups.reset import RESET
from batchqueue.cli.groups.resize import RESIZE
from batchqueue.cli.groups.run import RUN
from batchqueue.cli.groups.top import TOP
from batchqueue.cli.groups.trim import TRIM

GROUP_COMMANDS = (RUN, TOP, LOG, LAG, DRAIN, RESET, REDRIVE, TRIM, RESIZE)

GROUPS = command_group("groups", "run the workers of a group, and see what they do", GROUP_COMMANDS)
