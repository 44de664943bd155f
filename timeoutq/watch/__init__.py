"""What people see of a queue: counts and rates at one moment, what is wrong, and the live dashboard.

`snapshot.py` looks at a queue, `metrics.py` makes rates of samples, `doctor.py` examines the server and the queue,
`draw.py` draws a snapshot, `live.py` draws a new one again and again. `charts.py` makes pictures for browsers, and
`report.py` writes them into a file. Only `draw.py` and `live.py` know rich.
"""
