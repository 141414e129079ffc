"""How queues, statistics and configs look: in a prompt, in a notebook, and as a picture.

| file | what |
|---|---|
| `text.py` | short texts for `repr` |
| `html.py` | tables for notebooks |
| `picture.py` | the load of each thread and partition, as SVG |
"""
