"""The model families, found by scanning the folders next to this file. No framework is imported to describe them."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

_MODELS_DIR = Path(__file__).parent


@dataclass(frozen=True)
class ModelFamily:
    """Description of a family that needs no import of its port: ``FAMILY`` of ``models/NAME/family.py``.

    Attributes:
        title: name of the family in texts.
        heads: names of the heads of its port.
        tokenizers: kinds of tokenizers that a recipe may set, each with a description of the file that has the
            tokenizer, empty without such a file. The first kind is the default.
        checkpoints: examples of its repositories on the hub, for error messages.
        settings: keys of a recipe's ``model`` section that only its port has, each with the allowed values. The first
            value is the default.
        recipe_keys: other recipe keys that not every family has, each with its default.
        constants: attributes of its body with computed tables that have one row for each position.
        table_key: configuration key with the shape of its learned position table; empty without such a table.
        causal_key: configuration key that makes it causal; empty if it always is.
        seed_key: configuration key with the seed of its random draws in evaluation; empty without random draws.
        config_class: name of its configuration class in ``transformers``; empty without such a class.
        drafted_heads: heads that `toolkit recipe new` proposes from this family (``models/NAME/draft.py``).
        is_default: whether it is the family of a recipe that does not set one.
    """

    title: str
    heads: tuple[str, ...]
    tokenizers: Mapping[str, str]
    checkpoints: tuple[str, ...] = ()
    settings: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    recipe_keys: Mapping[str, Any] = field(default_factory=dict)
    constants: tuple[str, ...] = ()
    table_key: str = ""
    causal_key: str = ""
    seed_key: str = ""
    config_class: str = ""
    drafted_heads: tuple[str, ...] = ()
    is_default: bool = False


#: The names of all families.
FAMILIES = tuple(sorted(path.parent.name for path in _MODELS_DIR.glob("*/family.py")))


def families_with_module(module: str) -> list[str]:
    """Return the names of the families whose folder has a module of this name."""
    return [name for name in FAMILIES if (_MODELS_DIR / name / f"{module}.py").is_file()]


def family(name: str) -> ModelFamily:
    """Return the description of the family with this name, one of :data:`FAMILIES`."""
    return part(name, "family").FAMILY


def default_family() -> str:
    """Return the name of the family of a recipe that does not set one."""
    return next(name for name in FAMILIES if family(name).is_default)


def join_titles(names: Iterable[str]) -> str:
    """Return the titles of the families with these names, joined by "and"."""
    return " and ".join(family(name).title for name in names)


def lazy_exports(package: str, modules: Mapping[str, str]) -> tuple[list[str], Callable[[str], Any]]:
    """Return ``__all__`` and ``__getattr__`` of a package that imports its names on their first use.

    Args:
        package: name of the package.
        modules: for each name, the module of the package that defines it.
    """

    def get_attribute(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{package}.{modules[name]}"), name)

    return list(modules), get_attribute


def part(family: str, module: str) -> ModuleType:
    """Import and return a module of ``models/FAMILY``.

    Args:
        family: name of the family, one of :data:`FAMILIES`.
        module: name of the module, such as ``schema``; only ``config`` and ``modeling`` need Paddle.
    """
    return importlib.import_module(f"models.{family}.{module}")
