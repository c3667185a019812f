"""A program: the real client behind :mod:`models.files.hub`, asked line by line, so that many questions share a start.

A line of the standard input is a JSON object: ``id``, ``revision``, ``token`` (or null); or the path of a ``recipe``,
whose data is loaded. The answer is one, too: ``folder`` and the names of its ``files``, or the ``rows`` of each split;
or ``error`` and ``reason``. What is neither is a traceback, and ends the program.
"""

import json
import os
import sys
import time
from pathlib import Path

from models.files.hub import resolve_folder, tensor_files
from models.files.hub_errors import HubError
from models.files.plain import UnreadableFileError, open_tensors, read_object


def loaded(recipe: str) -> dict:
    """The data of a recipe."""
    from toolkit.errors import UserError
    from toolkit.recipe.load import load_recipe
    from toolkit.tasks import task_of

    try:
        made = load_recipe(recipe)
        splits = task_of(made).load_splits(made)
    except UserError as problem:
        return {"error": str(problem), "reason": "UserError"}
    rows = {name: list(rows["text"]) for name, rows in splits.items()}
    return {"rows": rows, "commit": made.found.commits.get("data"), "notes": made.found.notes}


def answer(id: str, revision: str | None = None, token: str | None = None, read: bool = False) -> dict:
    os.environ.pop("HF_TOKEN", None)
    if token:
        os.environ["HF_TOKEN"] = token
    try:
        folder = resolve_folder(id, revision)
        if read:
            read_object(folder / "config.json")
            for file in tensor_files(folder):
                with open_tensors(file):
                    pass
    except HubError as problem:
        return {"error": str(problem), "reason": problem.reason}
    except (UnreadableFileError, FileNotFoundError) as problem:
        return {"error": str(problem), "reason": type(problem).__name__}
    return {"folder": str(folder), "files": sorted(path.name for path in Path(folder).iterdir())}


if __name__ == "__main__":
    # Between its tries, as many as ever, the client waits for 24 s in all; the loopback hub is no other by then.
    time.sleep = lambda seconds, sleep=time.sleep: sleep(seconds / 20)
    for line in sys.stdin:
        asked = json.loads(line)
        print(json.dumps(loaded(**asked) if "recipe" in asked else answer(**asked)), flush=True)
