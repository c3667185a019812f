"""Import the classes of PaddleNLP that the ports use, without the rest of PaddleNLP.

PaddleNLP's ``__init__`` imports all of its parts: a web server, task flows, scikit-learn, SciPy's statistics,
`datasets`. That would take most of a command's start-up time, and no command uses them. The ``__init__`` of three
packages is therefore deferred (:class:`DeferredPackage`), and their modules are imported unchanged. The ``__init__``
runs on the first access to a name of the package that is not one of its modules, as in a user's own program.
:func:`deferred_import` defers the other imports of the Trainer.

No other file of `models` imports PaddleNLP. If PaddleNLP was imported before, nothing is deferred.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import importlib.util
import sys
import types
from collections.abc import Iterator
from typing import Any

from models import collector

#: Packages whose ``__init__`` is deferred. ``trainer`` and ``prompt`` import each other; one module of each is used.
DEFERRED_PACKAGES = ("paddlenlp", "paddlenlp.trainer", "paddlenlp.prompt")


class DeferredPackage(types.ModuleType):
    """A package whose ``__init__`` runs on the first access to a name that is not one of its modules."""

    def __getattr__(self, name: str) -> Any:
        # Python itself looks up dunder names, which must not run the package. Only import * needs __all__.
        if name.startswith("__") and name != "__all__":
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        if importlib.util.find_spec(f"{self.__name__}.{name}") is not None:
            return importlib.import_module(f"{self.__name__}.{name}")
        run_deferred_init(self)
        return getattr(self, name)


def defer_init(name: str) -> None:
    """Import the package of the given name without its ``__init__``, unless it is already imported."""
    if name in sys.modules or (spec := importlib.util.find_spec(name)) is None:
        return
    package = importlib.util.module_from_spec(spec)
    package.__class__ = DeferredPackage
    sys.modules[name] = package
    parent, _, attribute = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], attribute, package)
    else:
        package.__dict__["__version__"] = importlib.metadata.version(name)  # its modules read it


def run_deferred_init(package: types.ModuleType) -> None:
    """Run the ``__init__`` of a deferred package."""
    package.__class__ = types.ModuleType
    assert package.__spec__ is not None and package.__spec__.loader is not None
    package.__spec__.loader.exec_module(package)


class DeferredModule(types.ModuleType):
    """A module that is imported on the first access to one of its names."""

    def __getattr__(self, name: str) -> Any:
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), name)


@contextlib.contextmanager
def deferred_import(name: str) -> Iterator[None]:
    """In the ``with`` block, give code that imports the module ``name`` a :class:`DeferredModule` instead."""
    if name in sys.modules or (spec := importlib.util.find_spec(name)) is None:
        yield
        return
    sys.modules[name] = stand_in = DeferredModule(name)
    stand_in.__spec__ = spec
    try:
        yield
    finally:
        if sys.modules.get(name) is stand_in:
            del sys.modules[name]


with collector.pause_garbage_collection():
    if "paddlenlp" not in sys.modules:
        for name in DEFERRED_PACKAGES:
            defer_init(name)
        # The modules of data and transformers import each other, which only works if data comes first.
        importlib.import_module("paddlenlp.data")
    from paddlenlp.transformers import PretrainedConfig as PretrainedConfig
    from paddlenlp.transformers import PretrainedModel as PretrainedModel
    from paddlenlp.transformers import model_outputs as model_outputs
