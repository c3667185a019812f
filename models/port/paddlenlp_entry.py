"""The short way into PaddleNLP: what the ports take of it, without what it imports beside.

PaddleNLP's ``__init__`` imports all it has: a web server, task flows, scikit-learn, SciPy's statistics, `datasets`.
That is most of what a command's start took, and nothing of it is used here. So three of its packages are put off
(:class:`PutOff`): their modules are imported as they stand, and a package's own ``__init__`` runs when somebody asks
the package for a name that is none of its modules, as a user of PaddleNLP does. Nothing of it is replaced.

No other file of `models` imports PaddleNLP; where somebody has imported it before, it is taken as it is.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import sys
import types
from typing import Any

from models import collector

#: The packages that are put off. ``prompt``, which other parts need one module of, and ``trainer`` import each other.
PUT_OFF = ("paddlenlp", "paddlenlp.trainer", "paddlenlp.prompt")


class PutOff(types.ModuleType):
    """A package whose ``__init__`` runs when a name of it is asked for that is none of its modules."""

    def __getattr__(self, name: str) -> Any:
        # Python's own questions about a module are none about its content, but for a star's.
        if name.startswith("__") and name != "__all__":
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        if importlib.util.find_spec(f"{self.__name__}.{name}") is not None:
            return importlib.import_module(f"{self.__name__}.{name}")
        run_init(self)
        return getattr(self, name)


def put_off(name: str) -> None:
    """Have a package imported without its ``__init__``, unless it is there already."""
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
    """Run the ``__init__`` that was put off."""
    package.__class__ = types.ModuleType
    assert package.__spec__ is not None and package.__spec__.loader is not None
    package.__spec__.loader.exec_module(package)


with collector.paused():
    if "paddlenlp" not in sys.modules:
        for name in PUT_OFF:
            put_off(name)
        # Its modules import each other in circles; here the circle of data and transformers can be entered.
        importlib.import_module("paddlenlp.data")
    from paddlenlp.transformers import PretrainedConfig as PretrainedConfig
    from paddlenlp.transformers import PretrainedModel as PretrainedModel
    from paddlenlp.transformers import model_outputs as model_outputs
