"""The benchmark behind `timeoutq bench`: each figure beside the raw limit of the same server in the same run.

`cli/looking.py` calls `report.measure` and `report.show`. Reading order is import order: terms, ground, limits,
clients, workers, hosts, latency, pauses, report; `handlers` is imported by the workers that the benchmark starts.
"""
