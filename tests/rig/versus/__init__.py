"""Two trees of timeoutq compared by what a task costs: `python -m tests.rig.versus OLD NEW`."""
