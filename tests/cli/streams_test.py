"""Standard streams that are closed, full or have no reader, and files that are named badly."""
import json
import os
import subprocess
import sys

import pytest

from conftest import CACHE, FACTS, WIRED, program, volvelle, wired_text

FULL = "/dev/full"


def shell(redirection, *command, timeout=60):
    """Runs the program under sh with a redirection; what is left of the streams is captured."""
    return subprocess.run(["sh", "-c", f'exec "$0" "$@" {redirection}', program(),
                           *map(str, command)], capture_output=True, timeout=timeout)


@pytest.fixture()
def fold_command(tmp_path):
    (tmp_path / "t.txt").write_text(wired_text(3000))  # long enough for lines of progress
    return ["fold", "-m", WIRED, "-f", tmp_path / "t.txt", "-o", tmp_path / "m.vmem", "-t", 1]


@pytest.mark.parametrize("redirection", ["2>&-", "0<&- 2>&-", "2>/dev/full", "0<&-"])
def test_work_does_not_need_stderr_or_stdin(fold_command, tmp_path, redirection):
    done = shell(redirection, *fold_command)
    assert done.returncode == 0 and b"folded 3001 tokens" in done.stdout
    volvelle("inspect", tmp_path / "m.vmem", "--verify")


def test_nothing_else_is_written_into_the_memory_file(fold_command, tmp_path):
    done = shell("0<&- 1>&- 2>&-", *fold_command)
    assert done.returncode == 1  # the report could not be written, the file could
    volvelle("inspect", tmp_path / "m.vmem", "--verify")


def test_a_reader_of_stderr_that_left_stops_nothing(fold_command, tmp_path):
    process = subprocess.Popen([program(), *map(str, fold_command)], stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE)
    process.stderr.close()
    assert b"folded 3001 tokens" in process.stdout.read()
    assert process.wait(60) == 0


@pytest.mark.parametrize("arguments, code", [(["bogus"], 2), (["inspect", "no-such-file"], 1)])
@pytest.mark.parametrize("redirection", ["2>/dev/full", "2>&-"])
def test_errors_keep_their_exit_code(arguments, code, redirection):
    done = shell(redirection, *arguments)
    assert done.returncode == code


@pytest.mark.parametrize("arguments", [["--help"], ["fold", "--help"], ["--version"],
                                       ["inspect", WIRED, "--json"]])
@pytest.mark.parametrize("redirection", [f">{FULL}", "1>&-"])
def test_unwritable_stdout_is_a_failure(arguments, redirection):
    done = shell(redirection, *arguments)
    assert done.returncode == 1 and b"stdout" in done.stderr


@pytest.mark.parametrize("arguments", [["inspect", WIRED, "--json"], ["--help"],
                                       ["run", "-m", WIRED, "-p", "f00 k01", "-n", 4, "-t", 1]])
def test_reader_of_stdout_that_left_is_a_quiet_failure(arguments):
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run([program(), *map(str, arguments)], stdout=write, stderr=subprocess.PIPE)
    os.close(write)
    assert done.returncode == 1
    assert not [line for line in done.stderr.splitlines() if line.startswith(b"volvelle")]


@pytest.mark.parametrize("name", ["a\x1b[31mb", "a\nb", "a\x07b\x7f", "a\u009bb"])
def test_control_characters_in_names_are_escaped(tmp_path, name):
    text = tmp_path / f"{name}.txt"
    text.write_text(FACTS)
    memory = tmp_path / f"{name}.vmem"
    capture = tmp_path / f"{name}.safetensors"
    shown = [volvelle("fold", "-m", WIRED, "-f", text, "-o", memory, "-t", 1),
             volvelle("capture", "-m", WIRED, "-f", text, "-o", capture, "-t", 1),
             volvelle("inspect", memory), volvelle("inspect", capture),
             volvelle("inspect", tmp_path / f"{name}.absent", code=1)]
    for run in shown:
        for character in run.out + run.err:
            assert character == "\n" or character.isprintable(), repr(run.out + run.err)
    assert len(shown[-1].err.splitlines()) == 1
    assert volvelle("inspect", memory, "--json").json["path"] == str(memory)


def test_bytes_that_are_no_text_are_escaped(tmp_path):
    data = (CACHE / "models/tiny/llama-mha.gguf").read_bytes()
    model = tmp_path / "model.gguf"
    model.write_bytes(data.replace(b"tiny llama-mha", b"\xff\xc2\x9b31m\nllama-m", 1))
    assert "\\xff\\u009b31m\\nllama-m\n" in volvelle("inspect", model).out


def limited(command, n_bytes):
    """Runs the program with a limit on the size of files, which acts like a full disk."""
    script = ("import os, resource, sys\n"
              f"resource.setrlimit(resource.RLIMIT_FSIZE, ({n_bytes}, {n_bytes}))\n"
              "os.execv(sys.argv[1], sys.argv[1:])")
    return subprocess.run([sys.executable, "-c", script, program(), *map(str, command)],
                          capture_output=True, timeout=60)


def test_space_for_a_windowed_memory_is_reserved_before_the_work(fold_command, tmp_path):
    command = [*fold_command, "--memory", "sink(4)+window(256)"]
    done = limited(command, 200_000)
    assert done.returncode == 1
    assert b"tokens" not in done.stderr  # no progress
    assert os.listdir(tmp_path) == ["t.txt"]
    assert limited(command, 8 << 20).returncode == 0


def test_json_with_closed_stderr_is_one_object(fold_command):
    done = shell("2>&-", *fold_command, "--json")
    assert json.loads(done.stdout)["n_tokens"] == 3001
