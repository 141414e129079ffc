"""The commands `batchqueue store ...`: copies of stores, and whether a store is whole.

| file | holds |
|---|---|
| `commands.py` | the list of the commands |
| `target.py` | the store that a command is about |
| `backup.py`, `restore.py`, `check.py` | the commands |
"""
