"""The commands `batchqueue store ...`: what a store has, copies of it, and whether it is whole.

| file | holds |
|---|---|
| `commands.py` | the list of the commands |
| `target.py` | the store that a command is about |
| `ls.py`, `ledger.py`, `delete.py`, `backup.py`, `restore.py`, `check.py` | the commands |
| `epochs.py` | epochs as they are printed |
"""
