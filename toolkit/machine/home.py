"""The home folder of the libraries: the user's, or a writable one if that is not.

PaddleNLP, Paddle and VisualDL make folders in it on import; a service, a container or ``nobody`` often has none, or a
read-only one. Some of them have no variable of their own for it, so ``HOME`` is set, for this process and all that it
starts. Files that are only read are still found in the user's own home.
"""

from __future__ import annotations

import os
from pathlib import Path

from toolkit.machine.disk import check_writable

#: The user's home, if the libraries have another.
OWN = "TOOLKIT_OWN_HOME"
#: Libraries' folders to test if they exist: they may belong to somebody else.
WRITTEN = (".cache", ".cache/paddle", ".paddlenlp", ".visualdl")
#: Variable -> what is read in the user's home: the hub's downloads and token, keys, settings.
READ = {"HF_HOME": ".cache/huggingface", "NETRC": ".netrc", "WANDB_CONFIG_DIR": ".config/wandb"}
#: Variables of the hub's folders that are written beside its downloads.
OF_THE_HUB = {"HF_DATASETS_CACHE": "datasets", "HF_XET_CACHE": "xet"}


def give_libraries_a_home() -> None:
    """Set ``HOME``, before a library is imported, to a folder of the cache or a temporary one if it is not writable."""
    home = Path(os.path.expanduser("~"))
    if home.is_absolute() and _can_be_written(home):  # where nobody has one, "~" stays "~"
        return
    from toolkit.machine.runtime import cache_place
    from toolkit.machine.scratch import scratch_until_exit

    cache = cache_place()
    place = scratch_until_exit("toolkit-home-") if check_writable(cache) else cache / "home"
    for variable, name in READ.items():
        elsewhere = variable in os.environ or (variable == "HF_HOME" and "XDG_CACHE_HOME" in os.environ)
        if elsewhere or not os.access(home / name, os.R_OK):
            continue
        os.environ[variable] = str(home / name)
        if variable == "HF_HOME" and check_writable(home / name):
            for other, folder in OF_THE_HUB.items():
                os.environ.setdefault(other, str(place / name / folder))
    place.mkdir(parents=True, exist_ok=True)  # Paddle tests whether it is writable before making it
    os.environ.setdefault(OWN, str(home))
    os.environ["HOME"] = str(place)


def in_own_home(path: str) -> str:
    """Expand ``~`` in a user's path to the user's home if the libraries have another."""
    own = os.environ.get(OWN)
    return f"{own}{path[1:]}" if own and (path == "~" or path.startswith("~/")) else path


def _can_be_written(home: Path) -> bool:
    there = [home / name for name in WRITTEN if os.path.lexists(home / name)]
    return all(check_writable(folder) is None for folder in (home, *there))
