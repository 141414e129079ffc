"""The commands of `batchqueue store`."""

from batchqueue.cli.command import command_group
from batchqueue.cli.store.backup import BACKUP
from batchqueue.cli.store.check import CHECK
from batchqueue.cli.store.ledger import LEDGER
from batchqueue.cli.store.ls import LS
from batchqueue.cli.store.restore import RESTORE

STORE_COMMANDS = (LS, LEDGER, BACKUP, RESTORE, CHECK)

STORE = command_group(
    "store",
    "show what a store of metrics has, copy it, put a copy back, and check it",
    STORE_COMMANDS,
)
