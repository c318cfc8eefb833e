"""Memory files that are damaged, foreign or lie about their size, and several programs on one file:
refused with one line, or the old or the new content and never a mixture."""
import json
import os
import resource
import struct
import subprocess
import threading

import pytest
from safetensors.numpy import load_file

from conftest import FACTS, WIRED, model, program, volvelle, wired_text

# Every command that reads a memory, as arguments behind which nothing may be written.
READERS = [["ask", "FILE", "k17", "-t", 1], ["inspect", "FILE", "--verify"],
           ["fold", "--append", "-o", "FILE", "-f", "TEXT", "-t", 1]]
GIB = 1 << 30


def limited_memory(command, n_bytes):
    """Runs the program with at most `n_bytes` of its own: what a file claims must not be allocated.
    (Mapped files do not count.)"""
    return subprocess.run(
        [program(), *map(str, command)], capture_output=True, timeout=60,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (n_bytes, n_bytes)))


def refuse(command, path, text):
    """Runs a reader on a bad file: failed, one line, nothing printed, no file changed."""
    before = path.read_bytes() if path.is_file() and path.stat().st_size < GIB else None
    listed = sorted(os.listdir(path.parent))
    arguments = [{"FILE": path, "TEXT": text}.get(part, part) for part in command]
    done = limited_memory(arguments, GIB)
    assert done.returncode in (1, 3), done
    assert done.stdout == b""
    lines = [line for line in done.stderr.decode().splitlines() if line.startswith("volvelle")]
    assert len(lines) == 1, done.stderr
    assert sorted(os.listdir(path.parent)) == listed
    if before is not None:
        assert path.read_bytes() == before
    return lines[0]


@pytest.fixture()
def more(tmp_path):
    path = tmp_path / "more.txt"
    path.write_text("f04 k21 v07 f05")
    return path


def with_header(header, n_data):
    written = json.dumps(header).encode()
    written = written.ljust((len(written) + 8 + 63) // 64 * 64 - 8)
    return struct.pack("<Q", len(written)) + written + b"\0" * n_data


@pytest.mark.parametrize("command", READERS)
def test_empty_file(tmp_path, more, command):
    path = tmp_path / "empty.vmem"
    path.touch()
    message = refuse(command, path, more)
    assert "an empty file" in message or "neither a GGUF" in message


@pytest.mark.parametrize("command", READERS)
def test_ten_gigabytes_that_are_only_claimed(facts, tmp_path, more, command):
    whole = facts[1].read_bytes()
    length = struct.unpack("<Q", whole[:8])[0]
    header = json.loads(whole[8:8 + length])
    begin = header["layer.0.k"]["data_offsets"][0]
    header["layer.0.k"].update(shape=[2, 39062500, 64], data_offsets=[begin, begin + 10 * 10 ** 9])
    path = tmp_path / "claims.vmem"
    path.write_bytes(with_header(header, 100_000))
    assert "opening memory" in refuse(command, path, more)


@pytest.mark.parametrize("command", READERS)
def test_ten_gigabytes_of_nothing(tmp_path, more, command):
    path = tmp_path / "sparse.vmem"
    with open(path, "wb") as file:
        file.truncate(10 * GIB)
    message = refuse(command, path, more)
    assert "not a memory file" in message or "neither a GGUF" in message


@pytest.mark.parametrize("claimed", [0, 1, 1 << 40, (1 << 63) - 1, 1 << 63, (1 << 64) - 1])
def test_lengths_of_the_header_that_can_not_be(facts, tmp_path, more, claimed):
    path = tmp_path / "length.vmem"
    path.write_bytes(struct.pack("<Q", claimed) + facts[1].read_bytes()[8:])
    for command in READERS:
        refuse(command, path, more)


@pytest.mark.parametrize("command", READERS)
def test_folders_and_devices_are_no_memories(tmp_path, more, command):
    for path in [tmp_path, "/dev/null", "/dev/zero"]:
        arguments = [{"FILE": path, "TEXT": more}.get(part, part) for part in command]
        done = limited_memory(arguments, GIB)
        assert done.returncode in (1, 2), done
        assert done.stderr.decode().count("volvelle") == 1


def test_damage_while_a_question_is_asked_changes_no_other_file(facts, tmp_path, more):
    good = facts[1].read_bytes()
    path = tmp_path / "m.vmem"
    path.write_bytes(good[:-7])
    for command in READERS:
        refuse(command, path, more)
    assert volvelle("ask", facts[1], "k17", "-t", 1, "--json").json["answer"].strip() == "v42"
    assert facts[1].read_bytes() == good


# --- names and texts that are not UTF-8 ------------------------------------------------------


def test_questions_that_are_not_utf8(facts):
    done = subprocess.run([program(), "ask", facts[1], b"caf\xe9", "-t", "1"], capture_output=True)
    assert done.returncode in (1, 2) and done.stdout == b""
    assert b"UTF-8" in done.stderr


def test_prompts_that_are_not_utf8():
    done = subprocess.run([program(), "run", "-m", WIRED, "-p", b"f00 \xff", "-t", "1"],
                          capture_output=True)
    assert done.returncode in (1, 2) and done.stdout == b""
    assert b"UTF-8" in done.stderr


def test_file_names_that_are_not_utf8(tmp_path):
    folder = os.fsencode(tmp_path)
    text, memory = folder + b"/caf\xe9.txt", folder + b"/caf\xe9.vmem"
    with open(text, "w") as file:
        file.write(FACTS)
    done = subprocess.run([program(), "fold", "-m", WIRED, "-f", text, "-o", memory, "-t", "1",
                           "--json"], capture_output=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.decode())["n_tokens"] == 1 + len(FACTS.split())
    asked = subprocess.run([program(), "ask", memory, "k17", "-t", "1", "--json"],
                           capture_output=True)
    assert json.loads(asked.stdout.decode())["answer"].strip() == "v42"


def test_a_model_in_a_folder_that_is_not_utf8(tmp_path):
    folder = os.fsencode(tmp_path) + b"/mod\xe8les"
    os.mkdir(folder)
    os.symlink(model(WIRED), folder + b"/m.gguf")
    (tmp_path / "t.txt").write_text(FACTS)
    memory = tmp_path / "m.vmem"
    done = subprocess.run([program(), "fold", "-m", folder + b"/m.gguf", "-f", tmp_path / "t.txt",
                           "-o", memory, "-t", "1"], capture_output=True)
    if done.returncode == 0:  # the model is found again by its fingerprint
        assert volvelle("ask", memory, "k17", "-t", 1, "--json").json["answer"].strip() == "v42"
    else:
        assert b"UTF-8" in done.stderr and b"tokens" not in done.stderr
        assert not memory.exists()


# --- several programs on one file ------------------------------------------------------------


def test_questions_while_the_file_is_replaced(tmp_path):
    """Each answer is that of one of the two texts; nobody sees a file that is neither."""
    memory = tmp_path / "m.vmem"
    values = {"one": "v42", "two": "v43"}
    for name, value in values.items():
        (tmp_path / f"{name}.txt").write_text(f"f00 k17 {value} f01")
    fold = ["fold", "-m", WIRED, "-o", memory, "-t", 1, "-f"]
    volvelle(*fold, tmp_path / "one.txt")
    stop = threading.Event()

    def replace():
        while not stop.is_set():
            for name in ("two", "one"):
                volvelle(*fold, tmp_path / f"{name}.txt")

    writer = threading.Thread(target=replace)
    writer.start()
    try:
        for _ in range(3):
            asked = [subprocess.Popen([program(), "ask", memory, "k17", "-t", "1"],
                                      stdout=subprocess.PIPE, stderr=subprocess.PIPE)
                     for _ in range(4)]
            for process in asked:
                out, err = process.communicate(timeout=60)
                assert process.returncode == 0, err
                assert out.decode().strip() in values.values()
    finally:
        stop.set()
        writer.join()
    assert sorted(os.listdir(tmp_path)) == ["m.vmem", "one.txt", "two.txt"]


def test_two_questions_at_once_of_one_file(facts):
    asked = [subprocess.Popen([program(), "ask", facts[1], key, "-t", "1"], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE) for key in ("k17", "k05", "k40", "k33")]
    answers = [process.communicate(timeout=60)[0].decode().strip() for process in asked]
    assert answers == ["v42", "v11", "v63", "none"]


def test_the_last_of_many_folds_wins_and_the_file_is_whole(tmp_path):
    memory = tmp_path / "m.vmem"
    texts = [wired_text(300 + 50 * i, i) for i in range(4)]
    folds = []
    for i, text in enumerate(texts):
        (tmp_path / f"{i}.txt").write_text(text)
        folds.append(subprocess.Popen([program(), "fold", "-m", WIRED, "-f", tmp_path / f"{i}.txt",
                                       "-o", memory, "-t", "1"], stderr=subprocess.PIPE,
                                      stdout=subprocess.PIPE))
    for fold in folds:
        assert fold.communicate(timeout=60) and fold.returncode == 0
    volvelle("inspect", memory, "--verify")
    assert bytes(load_file(memory)["text"]).decode() in texts
    volvelle("fold", "-m", WIRED, "-f", tmp_path / "2.txt", "-o", memory, "-t", 1)
    assert bytes(load_file(memory)["text"]).decode() == texts[2]
    assert sorted(os.listdir(tmp_path)) == ["0.txt", "1.txt", "2.txt", "3.txt", "m.vmem"]
