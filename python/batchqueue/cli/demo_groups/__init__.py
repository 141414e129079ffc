"""`batchqueue demo --groups`: the flights through a group of workers; `command.run` begins it.

| file | holds |
|---|---|
| `options.py`, `folder.py` | the options; the folder of a run, which one run uses at a time |
| `server.py`, `keeper.py` | the Redis server of the run, and the process that ends it |
| `flights.py`, `feed.py` | flights as records; the thread that produces them |
| `program.py` | a worker: what it stores, and its journal |
| `workers.py`, `processes.py`, `threads.py` | the workers: processes on Redis, threads in memory |
| `group.py`, `progress.py` | a run of the group, and what is shown meanwhile |
| `conductor.py` | kills a worker and adds another one, by progress |
| `journal.py`, `timeline.py` | what workers note, and who owned what when |
| `command.py`, `report.py`, `figure.py` | the steps, the report and the picture |
"""
