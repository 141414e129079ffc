"""The commands `batchqueue store ...`: what a store has, copies of it, and whether it is whole.

| file | holds |
|---|---|
| `commands.py` | the list of the commands |
| `target.py` | the store that a command is about |
| `ls.py`, `show.py`, `ledger.py`, `delete.py` | what a store has |
| `backup.py`, `restore.py`, `check.py` | its copies, and whether it is whole |
| `epochs.py`, `times.py` | epochs and time buckets as they are printed |
"""
