"""Runs that share what they find: a database of failures, workers that die, a limit on the time."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from decoderspec.commands.main import main
from decoderspec.properties.check import check
from decoderspec.properties.database import PARTS, opened, scoped
from decoderspec.properties.loading import LoadError

PLANTED = Path(__file__).with_name("planted.py")
SUBJECTS = Path(__file__).with_name("subjects.py")
FOUND = "LOS-1"
A_PART = "loss_is_the_mean or one_row_per_token or prefix_bits"
PATIENCE = 120.0  # seconds


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


@contextlib.contextmanager
def redis_server(folder, port):
    """A server that keeps what it has in a folder, as long as the block lasts."""
    options = ["--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder), "--appendonly", "yes", "--save", ""]
    server = subprocess.Popen(["redis-server", *options], stdout=subprocess.DEVNULL)
    try:
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            with contextlib.suppress(LoadError):
                opened(f"redis://127.0.0.1:{port}/0")
                break
            time.sleep(0.05)
        yield
    finally:
        server.terminate()
        server.wait()


def needs_redis():
    if shutil.which("redis-server") is None:
        pytest.skip("there is no redis-server here (Debian's package of that name)")
    pytest.importorskip("redis", reason="the client of Redis is an extra")


@pytest.fixture(params=["directory", "redis"])
def place(request, tmp_path):
    """Where the database is: a folder, or a real server."""
    if request.param == "directory":
        yield str(tmp_path / "database")
        return
    needs_redis()
    port = free_port()
    with redis_server(tmp_path, port):
        yield f"redis://127.0.0.1:{port}/0"


class Campaign:
    """Runs of `decoderspec check` with two workers over the planted decoder."""

    def __init__(self, folder):
        self.folder = folder
        self.environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
        self.environment |= {"PLANTED": str(folder)}

    def start(self, seed, place):
        command = [sys.executable, "-m", "decoderspec.commands.main", "check", f"{PLANTED}:Planted"]
        command += [f"--seed={seed}", "--profile=default", f"--json={self.folder / 'report.json'}", "-n2"]
        command += [f"--database={place}", "--", "-k", A_PART]
        return subprocess.Popen(command, cwd=self.folder, env=self.environment, stdout=subprocess.DEVNULL)

    def report(self, seed, place):
        started = self.start(seed, place)
        assert started.wait(PATIENCE) in (0, 1)
        return self.document()

    def document(self):
        return json.loads((self.folder / "report.json").read_text(encoding="utf-8"))


@pytest.fixture
def campaign(tmp_path):
    pytest.importorskip("xdist", reason="pytest-xdist is an extra")
    folder = tmp_path / "campaign"
    folder.mkdir()
    return Campaign(folder)


def status_alone(seed, place):
    """What becomes of the requirement in this process."""
    part = ("-k", "loss_is_the_mean")
    found = check(f"{PLANTED}:Planted", seed=seed, database=place, pytest_arguments=part)
    return found.rows()[FOUND]["status"]


def test_a_worker_killed_in_the_middle_loses_nothing_that_was_found(campaign, place, tmp_path, monkeypatch):
    stop, waiting, known = (campaign.folder / name for name in ("stop", "waiting", "known"))
    stop.write_text(place, encoding="utf-8")
    started = campaign.start(1, place)
    until = time.monotonic() + PATIENCE
    while not (waiting.exists() and waiting.read_text(encoding="ascii")) and time.monotonic() < until:
        time.sleep(0.02)
    os.kill(int(waiting.read_text(encoding="ascii")), signal.SIGKILL)
    stop.unlink()
    assert started.wait(PATIENCE) == 2
    first = campaign.document()
    judged = {name for name, row in first["requirements"].items() if row["status"] == "pass"}
    assert judged == {"SHP-1", "CAU-2"}  # by the workers that live on
    assert FOUND in first["not_run"]
    assert any("not run" in problem for problem in first["problems"])

    shutil.copy(campaign.folder / "seen", known)  # wrong on these alone: another seed does not draw them
    assert campaign.report(2, place)["requirements"][FOUND]["status"] == "fail"
    if "://" not in place:  # the same without the database: once is enough
        monkeypatch.setenv("PLANTED", str(campaign.folder))
        assert status_alone(2, str(tmp_path / "empty")) == "pass"


def test_what_was_found_survives_the_server(tmp_path):
    needs_redis()
    port = free_port()
    place = f"redis://127.0.0.1:{port}/0"
    with redis_server(tmp_path, port):
        scoped(opened(place), "VAL-1").save(b"key", b"choices")
    with pytest.raises(LoadError):
        opened(place)
    with redis_server(tmp_path, port):
        assert list(scoped(opened(place), "VAL-1").fetch(b"key")) == [b"choices"]


def test_what_no_longer_fails_is_removed(monkeypatch, tmp_path):
    monkeypatch.setenv("PLANTED", str(tmp_path))
    place = str(tmp_path / "database")

    def stored():
        return {path for path in Path(place).rglob("*") if path.is_file()}

    assert status_alone(1, place) == "fail"
    before = stored()
    (tmp_path / "known").write_text("none\n", encoding="ascii")  # mended
    assert status_alone(2, place) == "pass"
    assert stored() < before


def test_each_property_has_failures_of_its_own(place):
    store = opened(place)
    one, other = scoped(store, "VAL-1"), scoped(store, "VAL-2")
    one.save(b"any key", b"choices")
    assert one.saved
    assert not other.saved
    other.delete(b"any key", b"choices")
    assert list(one.fetch(b"any key")) == [b"choices"]
    one.move(b"any key", b"any key" + PARTS[0], b"choices")
    assert list(one.fetch(b"any key")) == []
    assert one.saved


def test_what_was_not_judged_again_is_not_removed(tmp_path):
    database = scoped(opened(str(tmp_path)), "VAL-1")
    database.save(b"", b"choices")
    database.keeps = True
    database.delete(b"", b"choices")
    assert database.saved


def test_a_server_that_goes_away_ends_nothing_and_is_said(tmp_path):
    needs_redis()
    port = free_port()
    with redis_server(tmp_path, port):
        store = opened(f"redis://:@127.0.0.1:{port}/0")
    database = scoped(store, "VAL-1")
    database.save(b"", b"choices")
    assert list(database.fetch(b"")) == []
    assert f"redis://127.0.0.1:{port}/0 was lost on the way" in store.problem


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("mysql://localhost", "no example database of the kind mysql://; allowed: a directory, or redis://"),
        ("redis://localhost:port/0", "is not the address of a Redis server"),
        ("", "cannot be written to; allowed: a directory"),
        (str(PLANTED), "cannot be made"),
    ],
)
def test_a_place_that_is_no_database_is_refused_in_words(place, words, capsys):
    if place.startswith("redis"):
        pytest.importorskip("redis", reason="the client of Redis is an extra")
    assert main(["check", f"{SUBJECTS}:Right", "--database", place]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert "Traceback" not in error


def test_a_server_that_is_not_there_is_refused_without_its_password(capsys):
    pytest.importorskip("redis", reason="the client of Redis is an extra")
    place = f"redis://user:secret@127.0.0.1:{free_port()}/0"
    assert main(["check", f"{SUBJECTS}:Right", "--database", place]) == 2
    error = capsys.readouterr().err
    assert "no Redis server answers at redis://127.0.0.1:" in error
    assert "secret" not in error


def test_a_missing_client_is_named_with_the_extra_that_has_it(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "redis", None)
    monkeypatch.delitem(sys.modules, "hypothesis.extra.redis", raising=False)
    assert main(["check", f"{SUBJECTS}:Right", "--database", "redis://localhost"]) == 2
    assert "pip install 'decoderspec[redis]'" in capsys.readouterr().err


# --- The time limit ---


@pytest.mark.parametrize("limit", ["0", "-1", "nan", "inf"])
def test_a_time_limit_that_is_none_is_refused(limit, capsys):
    assert main(["check", f"{SUBJECTS}:Right", f"--time-limit={limit}"]) == 2
    assert "a time limit of" in capsys.readouterr().err


def test_a_run_that_reaches_its_time_limit_is_partial_and_says_what_it_left(tmp_path, capsys):
    file = tmp_path / "report.json"
    limited = ["--time-limit=0.001", f"--json={file}", "--profile=quick"]
    assert main(["check", f"{SUBJECTS}:Right", *limited]) == 2  # nothing at all was judged
    document = json.loads(file.read_text(encoding="utf-8"))
    assert set(document["contracts"].values()) <= {"partial", "absent"}
    assert document["problems"] == []
    printed = capsys.readouterr().out
    assert "the time limit of 0.001 s was reached" in printed
    assert "VAL-1" in printed.partition("was reached")[2]


def test_what_was_judged_before_the_time_limit_stands(monkeypatch):
    from decoderspec.properties import registry

    left = []
    monkeypatch.setattr(registry, "_late", lambda run: left or (run.entry.examples > 2 and left.append(run)))
    found = check(f"{SUBJECTS}:Right", profile="quick", pytest_arguments=("-k", "test_forward"))
    assert found.verdict in ("partial", "fails")
    assert "VAL-1" in found.not_run
    assert not [row for row in found.rows().values() if row["status"] == "error"]


def test_a_requirement_that_one_property_left_undone_is_not_run_though_another_holds():
    from decoderspec.properties.check import Collector

    collector = Collector(lambda record: None)
    usual = {"part": "", "examples": 1, "status": "pass"}
    collector.records = [
        usual | {"property": "one", "requirements": ["WGT-4"]},
        usual | {"property": "another", "requirements": ["WGT-5"]},
        usual | {"property": "third", "requirements": ["WGT-4", "WGT-1"], "status": "fail"},
    ]
    collector.unreached = [["WGT-4"]]
    assert collector.judged() == collector.records[1:]
