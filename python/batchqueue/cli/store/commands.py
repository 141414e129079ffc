"""The commands of `batchqueue store`."""

from batchqueue.cli.command import command_group
from batchqueue.cli.store.backup import BACKUP
from batchqueue.cli.store.check import CHECK
from batchqueue.cli.store.restore import RESTORE

STORE_COMMANDS = (BACKUP, RESTORE, CHECK)

STORE = command_group(
    "store", "copy a store of metrics, put a copy back, and check one", STORE_COMMANDS
)
