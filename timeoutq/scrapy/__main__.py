"""Joins the files of an item store: `python -m timeoutq.scrapy FOLDER > items.jsonl`."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from timeoutq.scrapy.stored import joined


def main() -> int:
    """Print each item once; gives the exit code."""
    parser = argparse.ArgumentParser("python -m timeoutq.scrapy", description="Print each item of a TIMEOUTQ_ITEMS.")
    parser.add_argument("folder", type=Path, help="what the setting TIMEOUTQ_ITEMS names")
    folder: Path = parser.parse_args().folder
    if not any(folder.glob("*.jsonl")):
        parser.error(f"{folder} has no *.jsonl: is it the folder that TIMEOUTQ_ITEMS names?")
    for item in joined(folder):
        sys.stdout.write(json.dumps(item, ensure_ascii=False) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
