"""The commands of `batchqueue store`."""

from batchqueue.cli.command import command_group
from batchqueue.cli.store.backup import BACKUP
from batchqueue.cli.store.check import CHECK
from batchqueue.cli.store.delete import DELETE
from batchqueue.cli.store.ledger import LEDGER
from batchqueue.cli.store.ls import LS
from batchqueue.cli.store.restore import RESTORE
from batchqueue.cli.store.show import SHOW

STORE_COMMANDS = (LS, SHOW, LEDGER, DELETE, BACKUP, RESTORE, CHECK)

STORE = command_group(
    "store",
    "show what a store of metrics has, delete old ones, copy it, put a copy back, check it",
    STORE_COMMANDS,
)
