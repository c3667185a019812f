"""Where a recipe's rows may come from, by name. Data alone, never code.

`datasets` reads much else (pickles, archives of anything, databases). A recipe may name only what holds rows of text
and nothing that runs.
"""

from __future__ import annotations

import importlib.util
import os
import pkgutil
import re
from collections.abc import Collection

from toolkit.machine.install import install_command
from toolkit.recipe.keys import FILE_KINDS
from toolkit.recipe.recipe import Recipe

#: The name of a hub data set: ``owner/name``, or the name alone of the oldest ones.
HUB_NAME = re.compile(r"(?!buckets/)[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?(?<!\.py)")

#: Built-in data -> the package that it is made with, and the extra that installs it.
EXTRAS = {"cldr_languages": ("babel", "demo"), "cldr_facts": ("babel", "demo")}


def check_source(recipe: Recipe, corpora: Collection[str]) -> None:
    """Check that ``data.dataset`` names data of an allowed kind, by its name alone: nothing is opened or looked up.
    Raises UserError at its line, with what would be right; also for built-in data whose package is not installed."""
    name = recipe.data.dataset
    if name in corpora and name in EXTRAS:
        package, extra = EXTRAS[name]
        if importlib.util.find_spec(package) is None:
            what = f"{name} is made with {package}, which is not installed"
            raise recipe.error("data.dataset", f"{what}; {install_command(extra)}")
    if name in corpora or name in FILE_KINDS:
        return
    kinds = ", ".join(FILE_KINDS)
    right = f"set one of {kinds} with data.files, a folder of such files, a hub data set (owner/name)"
    if corpora:
        right += f", or {', '.join(corpora)}"
    folder = recipe.resolve(name)
    if folder.is_dir():
        if (script := folder / f"{folder.resolve().name}.py").exists():
            raise recipe.error("data.dataset", f"{script} is a script, which is not run; {right}")
        return
    if os.path.lexists(folder):
        raise recipe.error(
            "data.dataset", f"{name} is a file; set its kind ({kinds}), and data.files: {{train: {name}}}"
        )
    if name in _readers_of_the_library():
        raise recipe.error("data.dataset", f"{name} is not read here: only data that cannot run code is; {right}")
    if not HUB_NAME.fullmatch(name):
        raise recipe.error("data.dataset", f"{name} is neither a folder nor the name of a hub data set; {right}")


def _readers_of_the_library() -> set[str]:
    """The kinds of data that `datasets` reads, by the names of its modules."""
    from datasets import packaged_modules

    return {module.name for module in pkgutil.iter_modules(packaged_modules.__path__)}
