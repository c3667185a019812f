"""The hub: what is downloaded, at which revision, and a line for each thing that goes wrong. The clients are the real
ones, the hub is a small one on the loopback interface."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import datasets
import numpy as np
import pytest
from loopback_hub import Corrupt, Cut, LoopbackHub, Pointer, Stall, Status, WrongSize
from safetensors import safe_open
from safetensors.numpy import save

from models.files.hub import split_revision
from models.reformer import schema
from models.reformer import weights as reformer
from models.reformer.tokenizer import load_tokenizer, train_sentencepiece
from toolkit.errors import UserError
from toolkit.recipe.load import load_recipe

ROOT = Path(__file__).parents[2]
SMALL = save({"weight": np.arange(8, dtype=np.float32)})
#: Longer than the pieces in which the client keeps what it has.
LARGE = save({"weight": np.zeros(6 * 2**20, dtype=np.float32)})
CONFIG = '{"model_type": "reformer"}'


class Client:
    """The program :mod:`hub_client`, with a cache of its own unless it is given one."""

    def __init__(self, hub: LoopbackHub, home: Path, **more: str) -> None:
        self.home = home
        environment = {**hub.environment(home, **more), "PYTHONPATH": str(ROOT)}
        program = [sys.executable, str(ROOT / "tests" / "hub_client.py")]
        self.errors = (home.parent / f"{home.name}.stderr").open("w+")
        self.process = subprocess.Popen(
            program, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, text=True
        )

    def ask(self, id: str, revision: str | None = None, **more: object) -> dict:
        return self.send({"id": id, "revision": revision, **more})

    def send(self, question: dict) -> dict:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(json.dumps(question) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, Path(self.errors.name).read_text()
        return json.loads(line)

    def close(self) -> None:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.close()
        self.process.wait(30)
        self.process.stdout.close()
        self.errors.close()


@pytest.fixture
def hub():
    with LoopbackHub() as hub:
        yield hub


@pytest.fixture
def client(hub, tmp_path):
    """Starts clients; without further words, of one cache."""
    started = []

    def start(home: str = "home", **more: str) -> Client:
        started.append(Client(hub, tmp_path / home, **more))
        return started[-1]

    yield start
    for one in started:
        one.close()


# -- what is downloaded ---------------------------------------------------------------------------------------------


def test_only_what_is_read_is_downloaded_and_pickles_only_where_there_is_nothing_better(hub, client):
    common = {"config.json": CONFIG, "tokenizer_config.json": "{}", "spiece.model": b"x", "vocab.json": "{}"}
    never = {"rust_model.ot": b"x", "tf_model.h5": b"x", "training_args.bin": b"x", "run.py": "", "onnx/a.json": "{}"}
    pickles = {"pytorch_model.bin": b"x", "merges.txt": "a"}
    old = hub.add("a/old", {**common, **never, **pickles})
    shards = {f"pytorch_model-0000{n}-of-00002.bin": b"x%d" % n for n in (1, 2)}
    index = json.dumps({"weight_map": {"a": "pytorch_model-00001-of-00002.bin"}})
    hub.add("a/sharded", {**common, **never, **shards, "pytorch_model.bin.index.json": index})
    old.commit({**common, **pickles, "model.safetensors": SMALL}, "refs/pr/1")
    asked = client()
    assert asked.ask("a/old")["files"] == sorted([*common, *pickles])
    assert asked.ask("a/old", "refs/pr/1")["files"] == sorted([*common, "merges.txt", "model.safetensors"])
    assert asked.ask("a/sharded")["files"] == sorted([*common, *shards, "pytorch_model.bin.index.json"])


def test_a_revision_is_a_folder_named_by_its_commit_and_is_not_downloaded_twice(hub, client):
    repository = hub.add("a/b", {"config.json": CONFIG, "model.safetensors": SMALL})
    first = repository.refs["main"]
    second = repository.commit({"config.json": CONFIG, "model.safetensors": SMALL, "merges.txt": "a"}, "refs/pr/3")
    asked = client()
    assert Path(asked.ask("a/b")["folder"]).name == first
    assert Path(asked.ask("a/b", "refs/pr/3")["folder"]).name == second
    assert len(hub.requests_with("/storage/", "GET")) == 1  # the weights of both are the same
    repository.commit({"config.json": CONFIG + " "})
    hub.requests.clear()
    assert Path(asked.ask("a/b", first)["folder"]).name == first
    assert hub.requests_with("resolve") == [] and hub.requests_with("/storage/") == []
    assert Path(asked.ask("a/b")["folder"]).name == repository.refs["main"] != first


# -- what goes wrong ------------------------------------------------------------------------------------------------


def test_every_error_is_a_line_that_names_the_place_and_the_way_out(hub, client):
    files = {"config.json": CONFIG, "model.safetensors": SMALL}
    for access in ("public", "private", "gated", "missing"):
        hub.add(f"a/{access}", files).access = access
    hub.add("a/empty", {"README.md": "nothing"})
    hub.add("a/ill", files).faults["model.safetensors"] = Status(429, message="slower")
    hub.add("a/pointer", files).faults["model.safetensors"] = Pointer()
    hub.add("a/corrupt", files).faults["model.safetensors"] = Corrupt(20)
    hub.add("a/size", files).faults["model.safetensors"] = WrongSize(100)
    hub.add("a/broken", {"config.json": CONFIG, "model.safetensors": SMALL[:-8]})
    hub.tokens |= {"hf_known"}
    asked, page = client(), hub.endpoint
    private = (
        "the model a/{} does not exist, or is private: without a login the hub does not say which; {}; if it is "
        "private, log in (hf auth login, or HF_TOKEN)"
    )
    again = "run the same command again"
    table = {
        ("a/private",): ("private", private.format("private", "check its name")),
        ("a/missing",): ("private", private.format("missing", "check its name")),
        ("google/reformer-enwiki8",): (
            "private",
            private.replace("a/{}", "{}").format("google/reformer-enwiki8", "did you mean google/reformer-enwik8"),
        ),
        ("a/private", None, "hf_known"): (
            "missing",
            "the model a/private does not exist, or is private and not for the account of this token; check its name; "
            f"see {page}/a/private",
        ),
        ("a/public", None, "hf_unknown"): (
            "token",
            "cannot read the model a/public: the hub does not know the token that was sent with it: it is wrong or has "
            "expired; log in again (hf auth login), or change HF_TOKEN",
        ),
        ("a/gated",): (
            "gated",
            "the model a/gated is gated: its files are for those who were granted access; ask for it at "
            f"{page}/a/gated, then log in (hf auth login, or HF_TOKEN); now there is no login here",
        ),
        ("a/gated", None, "hf_known"): (
            "gated",
            "the model a/gated is gated: its files are for those who were granted access; ask for it at "
            f"{page}/a/gated, and run again when it is granted to the account of this token",
        ),
        ("a/public", "refs/pr/9"): (
            "revision",
            "the model a/public has no revision refs/pr/9; it has main, and the commits at "
            f"{page}/a/public/commits/main",
        ),
        ("a/empty",): (
            "file",
            f"the model a/empty has no config.json, so it is no checkpoint of transformers; see {page}/a/empty",
        ),
        ("not//a name",): ("name", "not//a name is neither a folder nor the name of a hub repository (owner/name)"),
        ("a/ill",): (
            "hub",
            f"cannot read model.safetensors of the model a/ill at revision COMMIT: the hub answers 429 (slower); "
            f"{again} later",
        ),
        ("a/corrupt",): (
            "corrupt",
            "model.safetensors of the model a/corrupt at revision COMMIT came damaged: its checksum is not the one "
            f"that the hub announced; it was removed: {again} to fetch it",
        ),
        ("a/size",): (
            "corrupt",
            "model.safetensors of the model a/size at revision COMMIT came with another size than the hub announced; "
            f"what came was removed: {again} to fetch it",
        ),
        ("a/pointer",): (
            "UnreadableFileError",
            "SNAPSHOT/model.safetensors is a pointer of git-LFS, not the file itself (model.safetensors of the model "
            "a/pointer at revision COMMIT); the repository holds no more: take another revision, or tell its owner",
        ),
        ("a/broken",): (
            "UnreadableFileError",
            "SNAPSHOT/model.safetensors cannot be read as safetensors: Error while deserializing header: incomplete "
            "metadata, file not fully covered (model.safetensors of the model a/broken at revision COMMIT); delete "
            "BLOB, and it is fetched again",
        ),
    }
    for (id, revision, token), (reason, line) in {
        (*question, None, None)[:3]: answer for question, answer in table.items()
    }.items():
        found = asked.ask(id, revision, token=token, read=True)
        repository = hub.repositories.get(("model", id))
        commit = repository.refs["main"] if repository else ""
        folder = asked.home / "hub" / f"models--{id.replace('/', '--')}"
        snapshot = folder / "snapshots" / commit
        blob = os.path.realpath(snapshot / "model.safetensors")
        line = line.replace("COMMIT", commit).replace("SNAPSHOT", str(snapshot)).replace("BLOB", blob)
        assert (found.get("reason"), found.get("error")) == (reason, line), found
    assert asked.ask("a/size")["reason"] == "corrupt"  # nothing of the first attempt is in the way of the second
    # What was removed comes whole the next time.
    for id in ("a/corrupt", "a/size", "a/ill"):
        hub.repositories["model", id].faults.clear()
        assert "model.safetensors" in asked.ask(id, read=True)["files"]


def test_a_file_that_is_deleted_as_the_error_says_is_fetched_again(hub, client):
    repository = hub.add("a/b", {"config.json": CONFIG, "model.safetensors": SMALL})
    asked = client()
    folder = Path(asked.ask("a/b")["folder"])
    blob = Path(os.path.realpath(folder / "model.safetensors"))
    blob.write_bytes(SMALL[:-8])
    assert f"delete {blob}, and it is fetched again" in asked.ask("a/b", read=True)["error"]
    blob.unlink()
    hub.requests.clear()
    assert asked.ask("a/b", read=True)["folder"] == str(folder) and len(hub.requests_with("/storage/", "GET")) == 1
    assert repository.refs["main"] == folder.name


# -- without the hub ------------------------------------------------------------------------------------------------


def test_without_the_hub_the_cache_is_used_and_what_it_lacks_is_named(hub, client):
    repository = hub.add("a/b", {"config.json": CONFIG, "model.safetensors": SMALL})
    folder = client().ask("a/b")["folder"]
    hub.requests.clear()
    offline = client(HF_HUB_OFFLINE="1")
    assert offline.ask("a/b")["folder"] == folder
    assert offline.ask("a/b", repository.refs["main"])["folder"] == folder
    cache = offline.home / "hub"
    way = "unset it and run the same command again, or copy the cache of a machine that has it"
    assert offline.ask("a/c") == {
        "error": f"offline and not cached: config.json of the model a/c is not in {cache}, and HF_HUB_OFFLINE is set; "
        + way,
        "reason": "offline",
    }
    assert "config.json of the model a/b at revision refs/pr/1 is not in" in offline.ask("a/b", "refs/pr/1")["error"]
    Path(os.path.realpath(Path(folder, "model.safetensors"))).unlink()
    assert offline.ask("a/b")["error"].startswith("offline and not cached: model.safetensors of the model a/b is not")
    assert hub.requests == []


def test_a_hub_that_cannot_be_reached_is_as_good_as_none(tmp_path):
    with LoopbackHub() as hub:
        hub.add("a/b", {"config.json": CONFIG, "model.safetensors": SMALL})
        endpoint, asked = hub.endpoint, Client(hub, tmp_path / "home")
        folder = asked.ask("a/b")["folder"]
    try:
        assert asked.ask("a/b")["folder"] == folder
        assert f"and {endpoint} cannot be reached; connect" in asked.ask("a/c")["error"]
    finally:
        asked.close()


# -- interrupted ----------------------------------------------------------------------------------------------------


def test_a_download_that_is_cut_goes_on_where_it_was(hub, client):
    repository = hub.add("a/b", {"config.json": CONFIG, "model.safetensors": LARGE})
    repository.faults["model.safetensors"] = Cut(22 * 2**20, times=1)
    asked = client(TQDM_POSITION="-1")  # shows the client's progress bars without a terminal, too
    commit = repository.refs["main"]
    assert asked.ask("a/b") == {
        "error": f"the download of model.safetensors of the model a/b at revision {commit} was interrupted: the "
        "connection was closed; run the same command again: it goes on where it was",
        "reason": "interrupted",
    }
    hub.requests.clear()
    assert "folder" in asked.ask("a/b", read=True)
    assert [one.start for one in hub.requests_with("/storage/", "GET")] == [20 * 2**20]
    assert "model.safetensors: 100%" in Path(asked.errors.name).read_text()


def incomplete_bytes(client: Client) -> int:
    """Return the size in bytes of the file whose download was interrupted, 0 if there is none."""
    return sum(path.stat().st_size for path in client.home.rglob("*.incomplete"))


@pytest.mark.slow  # the client tries five times, a second each, before it gives up
def test_a_download_that_stands_still_is_given_up_and_goes_on_later(hub, client):
    repository = hub.add("a/b", {"config.json": CONFIG, "model.safetensors": LARGE})
    repository.faults["model.safetensors"] = Stall(22 * 2**20)
    asked = client(HF_HUB_DOWNLOAD_TIMEOUT="1")
    for _ in range(5):  # on a busy machine, the first bytes may take longer than the second for which the client waits
        error = asked.ask("a/b")["error"]
        assert "was interrupted: no more bytes came; run the same command again: it goes on" in error
        if incomplete_bytes(asked) == 20 * 2**20:
            break
    repository.faults.clear()
    hub.requests.clear()
    assert "folder" in asked.ask("a/b", read=True)
    assert [one.start for one in hub.requests_with("/storage/", "GET")] == [20 * 2**20]


def test_a_killed_download_goes_on_where_it_was(hub, client):
    repository = hub.add("a/b", {"config.json": CONFIG, "model.safetensors": LARGE})
    repository.faults["model.safetensors"] = Stall(22 * 2**20)
    killed = client(HF_HUB_DOWNLOAD_TIMEOUT="60")
    assert killed.process.stdin
    killed.process.stdin.write('{"id": "a/b"}\n')
    killed.process.stdin.flush()
    for _ in range(600):
        if incomplete_bytes(killed) == 20 * 2**20:
            break
        time.sleep(0.05)
    killed.process.kill()
    repository.faults.clear()
    hub.requests.clear()
    assert "folder" in client().ask("a/b", read=True)
    assert [one.start for one in hub.requests_with("/storage/", "GET")] == [20 * 2**20]


# -- data sets ------------------------------------------------------------------------------------------------------

ROWS = [{"text": f"text number {index}", "label": ["no", "yes"][index % 2]} for index in range(20)]
RECIPE = """\
train: {epochs: 1, learning_rate: 1e-3}
model: {config: {axial_pos_shape: [4, 8]}}
data:
  dataset: DATASET
  revision: REVISION
  max_length: 32
"""


def table(kind: str, count: int, **more: str) -> bytes:
    """The first rows as a file, with more columns of one value each."""
    rows = datasets.Dataset.from_list([{**row, **more} for row in ROWS[:count]])
    target = io.BytesIO()
    {"csv": rows.to_csv, "json": rows.to_json, "parquet": rows.to_parquet}[kind](target)
    return target.getvalue()


def written(tmp_path: Path, dataset: str, revision: str = "null") -> str:
    path = tmp_path / "x.yaml"
    path.write_text(RECIPE.replace("DATASET", dataset).replace("REVISION", revision))
    return str(path)


def test_a_data_set_of_the_hub_is_loaded_at_its_revision_and_again_without_the_hub(hub, client, tmp_path):
    for kind in ("csv", "json", "parquet"):
        content = {f"data/train.{kind}": table(kind, 12), f"data/validation.{kind}": table(kind, 4)}
        repository = hub.add(f"a/{kind}", content, kind="dataset")
    old = repository.refs["main"]
    new = repository.commit({"data/train.parquet": table("parquet", 6), "data/validation.parquet": table("parquet", 2)})
    asked = client()
    for kind, rows in (("csv", 12), ("json", 12), ("parquet", 6)):
        found = asked.send({"recipe": written(tmp_path, f"a/{kind}")})
        assert len(found["rows"]["train"]) == rows and found["rows"]["train"][0] == "text number 0", found
    assert found["commit"] == new
    assert len(asked.send({"recipe": written(tmp_path, "a/parquet", old)})["rows"]["train"]) == 12
    offline = client(HF_HUB_OFFLINE="1")
    hub.requests.clear()
    assert len(offline.send({"recipe": written(tmp_path, "a/parquet", old)})["rows"]["train"]) == 12
    assert len(offline.send({"recipe": written(tmp_path, "a/parquet")})["rows"]["train"]) == 6
    assert hub.requests == []
    error = offline.send({"recipe": written(tmp_path, "a/parquet", "f" * 40)})["error"]
    assert ":4: data.dataset: offline and not cached: the data set a/parquet at revision fff" in error


def test_every_error_of_a_data_set_is_at_its_line(hub, client, tmp_path):
    content = {"train.csv": table("csv", 12)}
    for access in ("public", "private", "gated"):
        hub.add(f"a/{access}", content, kind="dataset").access = access
    hub.add("a/empty", {"README.md": "nothing"}, kind="dataset")
    hub.add("a/pictures", {"train/a.png": b"x", "train/b.png": b"y"}, kind="dataset")
    for kind in ("parquet", "csv"):
        hub.add(f"a/cut_{kind}", {f"train.{kind}": table(kind, 12)}, kind="dataset").faults[f"train.{kind}"] = Cut(10)
    for name, fault in {"size": WrongSize(100), "ill": Status(429, message="slower")}.items():
        hub.add(f"a/{name}", {"train.parquet": table("parquet", 12)}, kind="dataset").faults["train.parquet"] = fault
    asked = client()
    unknown = "does not exist, or is private: without a login the hub does not say which"
    login = "log in (hf auth login, or HF_TOKEN)"
    lines = {
        "a/private": f"4: data.dataset: the data set a/private {unknown}; check its name; if it is private, {login}",
        "coastalcph/lexglue": f"4: data.dataset: the data set coastalcph/lexglue {unknown}; did you mean "
        f"coastalcph/lex_glue; if it is private, {login}",
        "a/gated": "4: data.dataset: the data set a/gated is gated: its files are for those who were granted access; "
        f"ask for it at {hub.endpoint}/datasets/a/gated, then {login}; now there is no login here",
        "a/public@v2": "5: data.revision: the data set a/public has no revision v2; it has main, and the commits at "
        f"{hub.endpoint}/datasets/a/public/commits/main",
        "a/size": "4: data.dataset: train.parquet of the data set a/size came with another size than the hub "
        "announced; what came was removed: run the same command again to fetch it",
        "a/ill": "4: data.dataset: cannot read train.parquet of the data set a/ill: the hub answers 429 (slower); run "
        "the same command again later",
        **{
            f"a/cut_{kind}": f"4: data.dataset: the download of train.{kind} of the data set a/cut_{kind} was "
            "interrupted: the connection was closed; run the same command again: it goes on where it was"
            for kind in ("parquet", "csv")
        },
        "a/pictures": "4: data.dataset: a/pictures holds data of the kind imagefolder, which is not read here; it "
        "should consist of files of one of the kinds json, csv, parquet, arrow, text",
    }
    for name, line in lines.items():
        dataset, _, revision = name.partition("@")
        path = written(tmp_path, dataset, revision or "null")
        assert asked.send({"recipe": path})["error"] == f"{path}:{line}"
    configs = "---\nconfigs:\n- {config_name: x, data_files: x.csv}\n- {config_name: y, data_files: y.csv}\n---\n"
    hub.add("a/configs", {"README.md": configs, "x.csv": table("csv", 2), "y.csv": table("csv", 2)}, kind="dataset")
    path = written(tmp_path, "a/configs")
    assert ": data.config: missing; a/configs has the configurations x, y" in asked.send({"recipe": path})["error"]
    assert ":4: data.dataset: cannot load a/empty: " in asked.send({"recipe": written(tmp_path, "a/empty")})["error"]


def test_an_interrupted_data_set_names_the_file_that_lacks_and_goes_on_where_it_was(hub, client, tmp_path):
    noise = np.random.default_rng(0).bytes(6 * 2**20).hex()
    large = datasets.Dataset.from_list([{**ROWS[n % 20], "noise": noise[n :: 2**10]} for n in range(2**10)])
    asked = client()
    for kind in ("parquet", "csv"):
        target = io.BytesIO()
        {"csv": large.to_csv, "parquet": large.to_parquet}[kind](target)
        small = {f"{name}.{kind}": table(kind, 2, noise="") for name in ("train-0", "validation")}
        repository = hub.add(f"a/{kind}", {**small, f"train-1.{kind}": target.getvalue()}, kind="dataset")
        repository.faults[f"train-1.{kind}"] = Cut(11 * 2**20, times=1)
        path = written(tmp_path, f"a/{kind}")
        assert asked.send({"recipe": path})["error"] == (
            f"{path}:4: data.dataset: the download of train-1.{kind} of the data set a/{kind} was interrupted: the "
            "connection was closed; run the same command again: it goes on where it was"
        )
        hub.requests.clear()
        assert len(asked.send({"recipe": path})["rows"]["train"]) == 2 + 2**10
        found = [one.start for one in hub.requests_with(f"train-1.{kind}", "GET") if one.status in (200, 206)]
        assert found == [10 * 2**20]


# -- recipes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (
            "data.revision=v1",
            "data.revision: is of a hub repository, and data.dataset is cldr_languages, which is none; ",
        ),
        ("model.revision=v1", "model.revision: is of a hub repository, and model.weights is not set; remove it"),
    ],
)
def test_a_revision_of_no_repository_is_refused_at_its_line(change, line):
    with pytest.raises(UserError) as refused:
        load_recipe(ROOT / "recipes" / "reformer_cls.yaml", [change])
    assert line in str(refused.value) and "\n" not in str(refused.value)


def test_a_folder_has_no_revision(tmp_path):
    with pytest.raises(
        UserError, match=r"model\.revision: is of a hub repository, and model\.weights is .*; remove it"
    ):
        load_recipe(ROOT / "recipes" / "reformer_cls.yaml", [f"model.weights={tmp_path}", "model.revision=refs/pr/1"])


def test_a_revision_on_a_command_line_is_parted_from_the_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert split_revision("a/b@refs/pr/1") == ("a/b", "refs/pr/1")
    assert split_revision("a/b") == ("a/b", None)
    Path("a@b").mkdir()
    assert split_revision("a@b") == ("a@b", None)


# -- whole runs -----------------------------------------------------------------------------------------------------

TINY = {
    "attn_layers": ["local"], "hidden_size": 32, "num_attention_heads": 1, "feed_forward_size": 32,
    "axial_pos_shape": [4, 8], "axial_pos_embds_dim": [16, 16], "local_num_chunks_after": 1, "vocab_size": 258,
    "model_type": "reformer",
}  # fmt: skip
RUN = """\
train: {max_steps: 4, eval_steps: 2, learning_rate: 1e-3}
model: {weights: a/tiny}
data: {dataset: a/data, max_length: 32}
"""
#: A run that is killed when it has left its first checkpoint.
KILLED = """
import os
from toolkit.run_folder.checkpoint import Checkpoints
save = Checkpoints.save
def save_and_die(self, *arguments, **named):
    save(self, *arguments, **named)
    os._exit(9)
Checkpoints.save = save_and_die
from toolkit.__main__ import main
main()
"""


def checkpoint(seed: int) -> dict[str, bytes | str]:
    """A small Reformer."""
    weights = reformer.initial_weights(schema.resolve(TINY), "masked_lm", seed)
    return {"config.json": json.dumps(TINY), "model.safetensors": save(weights)}


def command(
    hub: LoopbackHub, folder: Path, *arguments: str, code: str | None = None, **more: str
) -> tuple[int, str, str]:
    """Exit status, standard output and standard error of a command line in a folder, with the cache there."""
    environment = {**hub.environment(folder / "home", **more), "PYTHONPATH": str(ROOT)}
    program = ["-c", code] if code else ["-m", "toolkit"]
    done = subprocess.run(
        [sys.executable, *program, *arguments], env=environment, cwd=folder, capture_output=True, text=True, check=False
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout, done.stderr


@pytest.mark.slow
def test_a_run_keeps_the_commits_that_it_was_begun_with(hub, tmp_path):
    model = hub.add("a/tiny", checkpoint(0))
    data = hub.add("a/data", {"train.csv": table("csv", 16), "validation.csv": table("csv", 4)}, kind="dataset")
    old = {"model": model.refs["main"], "data": data.refs["main"]}
    (tmp_path / "x.yaml").write_text(RUN)
    finetune = ("finetune", "x.yaml", "--skip-parity", "a test", "train.output_dir=run")
    assert command(hub, tmp_path, *finetune, code=KILLED)[0] == 9
    assert json.loads((tmp_path / "run/identity.json").read_text())["commits"] == old
    moved = model.commit(checkpoint(1))
    data.commit({"train.csv": table("csv", 12), "validation.csv": table("csv", 4)})
    status, said, errors = command(hub, tmp_path, *finetune)
    assert status == 0, errors
    text = " ".join(said.split())
    assert f"hub a/tiny at {old['model']} hub a/data at {old['data']}" in text
    assert f"note a/tiny (main) has moved since this run began, from {old['model']} to {moved}; the run goes" in text
    assert "resuming run after step" in said
    card = (tmp_path / "run/README.md").read_text()
    assert f"starting from `a/tiny` at commit `{old['model']}`" in card
    assert f"`a/data` at commit `{old['data']}`" in card
    assert json.loads((tmp_path / "run/identity.json").read_text())["commits"] == old
    # A new run takes what the branch is at, and without the hub what it was at last.
    status, said, errors = command(hub, tmp_path, *finetune[:-1], "train.output_dir=new")
    assert status == 0 and f"hub    a/tiny at {moved}\n" in said, errors
    hub.requests.clear()
    status, said, errors = command(hub, tmp_path, *finetune[:-1], "train.output_dir=offline", HF_HUB_OFFLINE="1")
    assert status == 0 and f"hub    a/tiny at {moved}\n" in said and hub.requests == [], errors


@pytest.mark.slow
def test_a_gate_says_which_commit_it_judged(hub, tmp_path):
    repository = hub.add("a/tiny", checkpoint(0))
    commit = repository.commit(checkpoint(1), "refs/pr/1")
    options = ("--model", "reformer", "--head", "masked_lm", "--length", "32", "--weights", "a/tiny@refs/pr/1")
    status, said, errors = command(hub, tmp_path, "parity", *options, "--output", "out")
    assert status == 0, said + errors
    assert f"checkpoint a/tiny at {commit}" in " ".join(said.split())
    assert json.loads((tmp_path / "out/cpu/parity.json").read_text())["checkpoint"] == f"a/tiny at {commit}"
    assert f"a/tiny at {commit}" in (tmp_path / "out/cpu/parity.html").read_text()
    status, said, errors = command(hub, tmp_path, "parity", *options[:-1], "a/tiny@refs/pr/2", "--output", "out")
    assert (status, errors.splitlines()[-1]) == (
        2,
        "error: --weights a/tiny@refs/pr/2: the model a/tiny has no revision refs/pr/2; it has refs/pr/1, main, and "
        f"the commits at {hub.endpoint}/a/tiny/commits/main",
    )


@pytest.mark.slow
def test_an_error_of_the_hub_is_at_the_recipe_s_line_and_leaves_nothing(hub, tmp_path):
    hub.add("a/tiny", checkpoint(0)).access = "private"
    hub.add("a/data", {"train.csv": table("csv", 16), "validation.csv": table("csv", 4)}, kind="dataset")
    (tmp_path / "x.yaml").write_text(RUN)
    hub.requests.clear()
    status, said, _ = command(hub, tmp_path, "recipe", "check", "x.yaml")
    assert status == 0 and "a/data is a hub data set; it is fetched and checked when a run starts" in said
    assert hub.requests == []
    status, _, errors = command(hub, tmp_path, "finetune", "x.yaml", "--skip-parity", "a test", "train.output_dir=run")
    assert status == 2 and not (tmp_path / "run").exists()
    assert errors.splitlines()[-1] == (
        "error: x.yaml:2: model.weights: the model a/tiny does not exist, or is private: without a login the hub does "
        "not say which; check its name; if it is private, log in (hf auth login, or HF_TOKEN)"
    )


# -- a released layout ----------------------------------------------------------------------------------------------

#: Makes a small model as google/reformer-crime-and-punishment is one: by the reference, saved as torch did in 2020.
CAUSAL_REFORMER = """
import sys
from pathlib import Path
import torch
from transformers import ReformerConfig, ReformerModelWithLMHead
here, vocab_size = Path(sys.argv[1]), int(sys.argv[2])
config = ReformerConfig(
    architectures=["ReformerModelWithLMHead"], is_decoder=True, vocab_size=vocab_size, hidden_size=32,
    attn_layers=["local", "lsh", "local", "lsh"], axial_pos_shape=[8, 16], axial_pos_embds_dim=[8, 24],
    max_position_embeddings=128, num_attention_heads=2, attention_head_size=16, feed_forward_size=64,
    local_attn_chunk_length=16, lsh_attn_chunk_length=16, num_buckets=[2, 4], num_hashes=1, output_past=True,
    task_specific_params={"text-generation": {"do_sample": True, "max_length": 100}},
)
torch.manual_seed(0)
config.save_pretrained(here)
state = ReformerModelWithLMHead(config).state_dict()
torch.save(state, here / "pytorch_model.bin", _use_new_zipfile_serialization=False)
"""


@pytest.mark.slow
def test_the_shipped_recipe_fine_tunes_a_released_language_model(hub, tmp_path):
    text = "".join(f"The {word} ran over the hill and said so.\n\n" * 150 for word in ("cat", "dog", "hen"))
    (tmp_path / "text.txt").write_text(text)
    made = tmp_path / "made"
    tokenizer = train_sentencepiece([text], 48, made)
    done = subprocess.run(
        [sys.executable, "-c", CAUSAL_REFORMER, str(made), "48"], capture_output=True, text=True, check=False
    )
    if "No module named 'transformers'" in done.stderr or "No module named 'torch'" in done.stderr:
        pytest.skip("transformers is not installed (extra: reference)")
    assert done.returncode == 0, done.stderr
    (made / "tokenizer_config.json").unlink()
    hub.add("google/reformer-crime-and-punishment", made)
    recipe = str(ROOT / "recipes/reformer_lm_crime_and_punishment.yaml")
    changes = ("data.files.train=text.txt", "data.max_length=60", "train.output_dir=run", "train.max_steps=2")
    status, said, errors = command(hub, tmp_path, "recipe", "check", recipe, *changes)
    assert status == 0 and said.endswith(": ok\n"), said + errors
    status, said, errors = command(hub, tmp_path, "finetune", recipe, *changes, "--skip-parity", "a test")
    assert status == 0, errors
    told = " ".join(said.split())
    assert "4 layers" in told and "(new: none)" in told
    assert "texts of up to 60 tokens are padded to 64: a multiple of" in told
    assert "positions: the first 4 of 8 rows of the checkpoint's table (64 of 128 tokens)" in told
    with safe_open(tmp_path / "run/model/model.safetensors", "np") as saved:
        assert saved.get_slice("reformer.embeddings.position_embeddings.weights.0").get_shape() == [8, 1, 8]
    assert load_tokenizer(tmp_path / "run/model").fingerprint() == tokenizer.fingerprint()
    status, said, errors = command(hub, tmp_path, "generate", "run", "--prompt", "The cat", "--length", "100")
    assert status == 0 and said.startswith("The cat"), errors
