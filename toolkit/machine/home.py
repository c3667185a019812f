"""The home folder of the libraries: the user's, or a temporary one if the user's is not writable.

PaddleNLP, Paddle and VisualDL create folders in it on import. A service or a container often has no home folder, or a
read-only home folder. Some of these libraries have no variable for it. So ``HOME`` is set for this process and its
child processes. Files that are only read are still found in the user's home folder.

The temporary folder is always new. Python and its libraries run files of a home folder (``.local``, compiled code). So
a folder that another user may have filled, such as ``.cache`` of the current folder, cannot be a home folder. Only data
is written to the cache: the downloads from the hub.
"""

from __future__ import annotations

import os
from pathlib import Path

from toolkit.machine.disk import find_write_obstacle

#: Variable with the user's home folder, set if the libraries use a temporary one.
OWN_HOME = "TOOLKIT_OWN_HOME"
#: Folders that libraries write, checked if they exist: they may belong to another user.
WRITTEN_FOLDERS = (".cache", ".cache/paddle", ".paddlenlp", ".visualdl")
#: Variable -> file or folder with keys or settings that is read from the user's home.
READ_FILES = {"NETRC": ".netrc", "WANDB_CONFIG_DIR": ".config/wandb"}
#: Variable -> folder that the hub's libraries write next to its downloads.
HUB_FOLDERS = {"HF_DATASETS_CACHE": "datasets", "HF_XET_CACHE": "xet"}


def set_writable_home() -> None:
    """Set ``HOME`` to a temporary folder if the user's home is not writable; call it before a library is imported."""
    home = Path(os.path.expanduser("~"))
    if home.is_absolute() and _is_writable_home(home):  # without a home folder, "~" stays "~"
        return
    from toolkit.machine.scratch import scratch_until_exit

    temporary_home = scratch_until_exit("toolkit-home-")
    for variable, name in READ_FILES.items():
        if variable not in os.environ and os.access(home / name, os.R_OK):
            os.environ[variable] = str(home / name)
    if "HF_HOME" not in os.environ and "XDG_CACHE_HOME" not in os.environ:
        _set_hub_folders(home / ".cache/huggingface", temporary_home)
    os.environ.setdefault(OWN_HOME, str(home))
    os.environ["HOME"] = str(temporary_home)


def _set_hub_folders(downloads: Path, temporary_home: Path) -> None:
    """Set the variables of the hub's folders: the user's downloads if readable, and writable folders of the cache.

    Args:
        downloads: folder in the user's home with the hub's downloads and token.
        temporary_home: temporary home folder; it receives the hub's modules, and all files if the cache is read-only.
    """
    from toolkit.machine.runtime import configured_cache_folder

    if find_write_obstacle(downloads):
        writable_folder = (
            temporary_home if find_write_obstacle(configured_cache_folder()) else configured_cache_folder()
        ) / "huggingface"
        for variable, folder in HUB_FOLDERS.items():
            os.environ.setdefault(variable, str(writable_folder / folder))
        os.environ.setdefault("HF_MODULES_CACHE", str(temporary_home / "modules"))  # its modules are imported
        downloads = downloads if os.access(downloads, os.R_OK) else writable_folder
    os.environ["HF_HOME"] = str(downloads)


def expand_user_home(path: str) -> str:
    """Return a path with ``~`` expanded to the user's home if the libraries use a temporary one."""
    user_home = os.environ.get(OWN_HOME)
    return f"{user_home}{path[1:]}" if user_home and (path == "~" or path.startswith("~/")) else path


def _is_writable_home(home: Path) -> bool:
    """Return whether a home folder, and the folders in it that programs write to, can be written."""
    existing_folders = [home / name for name in WRITTEN_FOLDERS if os.path.lexists(home / name)]
    return all(find_write_obstacle(folder) is None for folder in (home, *existing_folders))
