"""Import what the ports use of PaddleNLP, without all the rest of it.

PaddleNLP's ``__init__`` imports all it has: a web server, task flows, scikit-learn, SciPy's statistics, `datasets`.
That took most of a command's start-up time, and nothing of it is used here. So the ``__init__`` of three packages is
deferred (:class:`PutOff`). Their modules are imported unchanged; a package's own ``__init__`` runs when somebody asks
the package for a name that is not one of its modules, as a user of PaddleNLP does. Nothing of it is replaced.
:func:`later` puts off what the Trainer imports besides.

No other file of `models` imports PaddleNLP; if it was imported before, it is used as it is.
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

#: The deferred packages. ``trainer`` and ``prompt``, of which other parts need one module, import each other.
PUT_OFF = ("paddlenlp", "paddlenlp.trainer", "paddlenlp.prompt")


class PutOff(types.ModuleType):
    """A package whose ``__init__`` runs on first access to a name that is not one of its modules."""

    def __getattr__(self, name: str) -> Any:
        # Dunder look-ups are Python's own, not for content; but import * asks for __all__.
        if name.startswith("__") and name != "__all__":
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        if importlib.util.find_spec(f"{self.__name__}.{name}") is not None:
            return importlib.import_module(f"{self.__name__}.{name}")
        run_init(self)
        return getattr(self, name)


def put_off(name: str) -> None:
    """Import a package without its ``__init__``, unless it is already imported."""
    if name in sys.modules or (spec := importlib.util.find_spec(name)) is None:
        return
    package = importlib.util.module_from_spec(spec)
    package.__class__ = PutOff
    sys.modules[name] = package
    parent, _, attribute = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], attribute, package)
    else:
        package.__dict__["__version__"] = importlib.metadata.version(name)  # its modules ask for it


def run_init(package: types.ModuleType) -> None:
    """Run the deferred ``__init__``."""
    package.__class__ = types.ModuleType
    assert package.__spec__ is not None and package.__spec__.loader is not None
    package.__spec__.loader.exec_module(package)


class Later(types.ModuleType):
    """A module that is imported on first access to a name of it."""

    def __getattr__(self, name: str) -> Any:
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), name)


@contextlib.contextmanager
def later(name: str) -> Iterator[None]:
    """Put off the import of a module: what imports it in the ``with`` block gets a :class:`Later` in its place."""
    if name in sys.modules or (spec := importlib.util.find_spec(name)) is None:
        yield
        return
    sys.modules[name] = stand_in = Later(name)
    stand_in.__spec__ = spec
    try:
        yield
    finally:
        if sys.modules.get(name) is stand_in:
            del sys.modules[name]


with collector.paused():
    if "paddlenlp" not in sys.modules:
        for name in PUT_OFF:
            put_off(name)
        # Its modules import each other in a cycle; that of data and transformers works from here.
        importlib.import_module("paddlenlp.data")
    from paddlenlp.transformers import PretrainedConfig as PretrainedConfig
    from paddlenlp.transformers import PretrainedModel as PretrainedModel
    from paddlenlp.transformers import model_outputs as model_outputs
