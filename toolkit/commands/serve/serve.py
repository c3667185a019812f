"""`toolkit serve`: listen, load the run, answer until a signal comes."""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

from models import families
from toolkit.commands.predict import load_run, read_recipe
from toolkit.commands.serve.requests import Service, service_of
from toolkit.errors import UserError
from toolkit.run_folder.predictions import SPLITS
from toolkit.run_folder.read import read_json
from toolkit.tasks.interface import Run

if TYPE_CHECKING:
    from rich.console import Console


def serve(folder: Path, console: Console, host: str, port: int, timeout: float) -> None:
    """Answer requests to a run's best model until a signal comes; port 0 is a free one. Raises UserError if the folder
    is no finished run, or the address cannot be listened on."""
    read_recipe(folder)
    with listen(host, port) as listening:
        from toolkit.commands.serve.app import make_app
        from toolkit.commands.serve.connections import make_server
        from toolkit.commands.serve.page import page
        from toolkit.commands.serve.worker import Worker

        address, port = listening.getsockname()[:2]
        run = load_run(folder)  # here: imported in a thread, Paddle would take the signals
        service = service_of(run)
        about = description(run, service)
        names = {"localhost", host.lower(), socket.gethostname().lower(), socket.getfqdn().lower()}
        app = make_app(service, Worker(), about, page(about, service), names, timeout)
        server = make_server(app, timeout)
        named = f"[{host}]" if ":" in host else host
        console.print(f"{folder}: http://{named}:{port}/ until Ctrl-C", highlight=False, soft_wrap=True)
        if not ipaddress.ip_address(address.partition("%")[0]).is_loopback:
            console.print("note: whoever reaches this address can use the run; there is no password", soft_wrap=True)
        serving = ThreadPoolExecutor(1).submit(server.run, [listening])  # where it leaves signals alone
        try:
            serving.result()
        finally:
            server.should_exit = True
            wait([serving])


def listen(host: str, port: int) -> socket.socket:
    """Listen on an address. Raises UserError if there is none of that name, or it is in use or not allowed."""
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server(address[:2], family=family)
    except (socket.gaierror, UnicodeError):
        raise UserError(f"--host {host}: is no address of this machine") from None
    except OSError as error:
        said = f"{os.strerror(error.errno or 0)} ({host}); take another, or 0 for a free one"
        raise UserError(f"--port {port}: {said}") from None


def description(run: Run, service: Service) -> dict[str, Any]:
    """Describe a run without the paths of its files."""
    results = read_json(run.folder / "metrics.json", "restore it from a copy, or train again")
    return {
        "run": run.folder.resolve().name,
        "task": run.task.DESCRIPTION.name,
        "model": families.family(run.recipe.model.name).title,
        "parameters": results.get("parameters"),
        "length": run.length,
        "labels": run.label_names,
        "control_codes": list(service.codes),
        "metrics": {split: results[split] for split in SPLITS if isinstance(results.get(split), Mapping)},
        "path": service.path,
        "fields": list(service.request.model_fields),
    }
