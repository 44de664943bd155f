"""The handler of a `timeoutq worker` in a storm, which writes down what the process says to the server and hears."""

from __future__ import annotations

import json
import os

from tests.rig.storm import Life, Plan

_plan, _seed = json.loads(os.environ["STORM"])
_life = Life(Plan(**_plan), _seed)
_life.begin("command")

handle = _life.handle
