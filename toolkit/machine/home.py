"""The home folder of the libraries: the user's, or a temporary one if the user's is not writable.

PaddleNLP, Paddle and VisualDL make folders in it on import. A service or a container often has no home folder, or a
read-only home folder. Some of these libraries have no variable for it. So ``HOME`` is set for this process and its
child processes. Files that are only read are still found in the user's home folder.

The temporary folder is always new. Python and its libraries run files of a home folder (``.local``, compiled code). So
a folder that another user may have filled, such as ``.cache`` of the current folder, cannot be a home folder. Only data
is written to the cache: the downloads from the hub.
"""

from __future__ import annotations

import os
from pathlib import Path

from toolkit.machine.disk import check_writable

#: The user's home, if the libraries have another.
OWN = "TOOLKIT_OWN_HOME"
#: Libraries' folders to test if they exist: they may belong to another user.
WRITTEN = (".cache", ".cache/paddle", ".paddlenlp", ".visualdl")
#: Variable -> file or folder that is read in the user's home: keys, settings.
READ = {"NETRC": ".netrc", "WANDB_CONFIG_DIR": ".config/wandb"}
#: Variables of the hub's folders that are written beside its downloads.
OF_THE_HUB = {"HF_DATASETS_CACHE": "datasets", "HF_XET_CACHE": "xet"}


def give_libraries_a_home() -> None:
    """Set ``HOME`` to a new temporary folder if the user's home is not writable; call it before importing a library."""
    home = Path(os.path.expanduser("~"))
    if home.is_absolute() and _can_be_written(home):  # without a home folder, "~" stays "~"
        return
    from toolkit.machine.scratch import scratch_until_exit

    place = scratch_until_exit("toolkit-home-")
    for variable, name in READ.items():
        if variable not in os.environ and os.access(home / name, os.R_OK):
            os.environ[variable] = str(home / name)
    if "HF_HOME" not in os.environ and "XDG_CACHE_HOME" not in os.environ:
        _set_hub_folders(home / ".cache/huggingface", place)
    os.environ.setdefault(OWN, str(home))
    os.environ["HOME"] = str(place)


def _set_hub_folders(downloads: Path, place: Path) -> None:
    """Set the hub's folders: the user's downloads if they are readable, and folders of the cache to write.

    Args:
        downloads: the folder in the user's home with the hub's downloads and token.
        place: the temporary home, which gets the hub's modules, and everything if the cache is not writable.
    """
    from toolkit.machine.runtime import cache_place

    if check_writable(downloads):
        writable_folder = (place if check_writable(cache_place()) else cache_place()) / "huggingface"
        for variable, folder in OF_THE_HUB.items():
            os.environ.setdefault(variable, str(writable_folder / folder))
        os.environ.setdefault("HF_MODULES_CACHE", str(place / "modules"))  # its modules are imported
        downloads = downloads if os.access(downloads, os.R_OK) else writable_folder
    os.environ["HF_HOME"] = str(downloads)


def in_own_home(path: str) -> str:
    """Expand ``~`` in a user's path to the user's home if the libraries have another."""
    own = os.environ.get(OWN)
    return f"{own}{path[1:]}" if own and (path == "~" or path.startswith("~/")) else path


def _can_be_written(home: Path) -> bool:
    there = [home / name for name in WRITTEN if os.path.lexists(home / name)]
    return all(check_writable(folder) is None for folder in (home, *there))
