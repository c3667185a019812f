"""Check the source of a recipe's rows by its name: only data, never code.

`datasets` also reads pickles, archives and databases. A recipe may name only sources that hold rows of text and cannot
run code.
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

#: Name of a hub data set: ``owner/name``, or ``name`` without an owner for old data sets.
HUB_NAME_PATTERN = re.compile(r"(?!buckets/)[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?(?<!\.py)")

#: Built-in data -> package that it needs, and extra that installs the package.
EXTRA_BY_CORPUS = {"cldr_languages": ("babel", "demo"), "cldr_facts": ("babel", "demo")}


def check_source(recipe: Recipe, corpora: Collection[str]) -> None:
    """Check that ``data.dataset`` names an allowed source, without opening it or using the network.

    Args:
        recipe: recipe with the data section.
        corpora: names of built-in data.

    Raises:
        UserError: the name is not allowed, or a package of built-in data is not installed.
    """
    name = recipe.data.dataset
    if name in corpora and name in EXTRA_BY_CORPUS:
        package, extra = EXTRA_BY_CORPUS[name]
        if importlib.util.find_spec(package) is None:
            problem = f"{name} is made with {package}, which is not installed"
            raise recipe.error("data.dataset", f"{problem}; {install_command(extra)}")
    if name in corpora or name in FILE_KINDS:
        return
    kinds = ", ".join(FILE_KINDS)
    remedy = f"set one of {kinds} with data.files, a folder of such files, a hub data set (owner/name)"
    if corpora:
        remedy += f", or {', '.join(corpora)}"
    folder = recipe.resolve(name)
    if folder.is_dir():
        if (script := folder / f"{folder.resolve().name}.py").exists():
            raise recipe.error("data.dataset", f"{script} is a script, which is not run; {remedy}")
        return
    if os.path.lexists(folder):
        raise recipe.error(
            "data.dataset", f"{name} is a file; set its kind ({kinds}), and data.files: {{train: {name}}}"
        )
    if name in _list_library_readers():
        raise recipe.error("data.dataset", f"{name} is not read here: only data that cannot run code is; {remedy}")
    if not HUB_NAME_PATTERN.fullmatch(name):
        raise recipe.error("data.dataset", f"{name} is neither a folder nor the name of a hub data set; {remedy}")


def _list_library_readers() -> set[str]:
    """Return the names of the data formats that the library `datasets` can read, such as ``csv`` and ``parquet``."""
    from datasets import packaged_modules

    return {module.name for module in pkgutil.iter_modules(packaged_modules.__path__)}
