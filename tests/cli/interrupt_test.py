"""Ctrl-C: stops at once, exit code 130, no half-written file; and what progress looks like."""
import os
import pty
import signal
import subprocess
import time

import pytest

from conftest import WIRED, program, volvelle, wired_text

STOP_SECONDS = 2.0  # one second by design; the machine may be shared


@pytest.fixture(scope="module")
def long_text(tmp_path_factory):
    path = tmp_path_factory.mktemp("long") / "long.txt"
    path.write_text(wired_text(40000))  # a minute of work
    return path


def interrupt(command, folder, number):
    """Starts `command`, waits for its first progress, sends a signal; seconds until it ended."""
    process = subprocess.Popen([program(), *map(str, command)], stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE)
    line = process.stderr.readline()
    while line and b"tokens" not in line:
        line = process.stderr.readline()
    time.sleep(0.3)
    sent = time.monotonic()
    process.send_signal(number)
    out, err = process.communicate(timeout=30)
    return process.returncode, time.monotonic() - sent, out, err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("spec", ["full", "sink(4)+window(256)"])
def test_interrupted_fold_leaves_the_old_file(long_text, tmp_path, number, spec):
    memory = tmp_path / "m.vmem"
    memory.write_bytes(b"the old file")
    code, seconds, out, err = interrupt(
        ["fold", "-m", WIRED, "-f", long_text, "-o", memory, "-t", 1, "--memory", spec], tmp_path,
        number)
    assert code == 130
    assert seconds < STOP_SECONDS
    assert out == b"" and b"interrupted" in err
    assert memory.read_bytes() == b"the old file"
    assert os.listdir(tmp_path) == ["m.vmem"]


@pytest.mark.parametrize("command", [
    ["capture", "-o", "OUT"],
    ["audit", "--tokens", "30000", "--last", "16"],
    ["bench", "drift", "--tokens", "30000"],
])
def test_other_long_work_stops_too(long_text, tmp_path, command):
    command = [tmp_path / "out" if part == "OUT" else part for part in command]
    code, seconds, out, err = interrupt([*command, "-m", WIRED, "-f", long_text, "-t", 1], tmp_path,
                                        signal.SIGINT)
    assert code == 130, err
    assert seconds < STOP_SECONDS
    assert os.listdir(tmp_path) == []


def test_interrupt_with_json_is_one_object(long_text, tmp_path):
    code, _, out, _ = interrupt(["fold", "-m", WIRED, "-f", long_text, "-o", tmp_path / "m.vmem",
                                 "-t", 1, "--json"], tmp_path, signal.SIGINT)
    assert code == 130
    assert b'"cancelled"' in out


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("writer", [False, True])
def test_waiting_for_a_pipe_can_be_interrupted(tmp_path, number, writer):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    # With a writer the read blocks, without one already the opening of the file.
    held = os.open(pipe, os.O_RDWR) if writer else None
    process = subprocess.Popen([program(), "fold", "-m", WIRED, "-f", pipe, "-o",
                                tmp_path / "m.vmem"], stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE)
    time.sleep(0.5)
    process.send_signal(number)
    out, err = process.communicate(timeout=5)
    if held is not None:
        os.close(held)
    assert process.returncode == 130, err
    assert out == b"" and err.count(b"\n") == 1
    assert os.listdir(tmp_path) == ["pipe"]


def test_hangup_is_ignored_under_nohup(tmp_path):
    (tmp_path / "t.txt").write_text(wired_text(3000))
    process = subprocess.Popen([program(), "fold", "-m", WIRED, "-f", tmp_path / "t.txt", "-o",
                                tmp_path / "m.vmem", "-t", "1"], stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE,
                               preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    time.sleep(0.2)
    process.send_signal(signal.SIGHUP)
    assert b"folded 3001 tokens" in process.communicate(timeout=60)[0]
    assert process.returncode == 0


def test_progress_is_plain_lines_in_a_pipe(tmp_path):
    (tmp_path / "t.txt").write_text(wired_text(3000))
    run = volvelle("fold", "-m", WIRED, "-f", tmp_path / "t.txt", "-o", tmp_path / "m.vmem", "-t", 1)
    assert "tokens/s" in run.err
    assert "\r" not in run.err and "\x1b" not in run.err


def test_progress_is_a_bar_on_a_terminal(tmp_path):
    (tmp_path / "t.txt").write_text(wired_text(3000))
    parent, child = pty.openpty()
    process = subprocess.Popen([program(), "fold", "-m", WIRED, "-f", tmp_path / "t.txt", "-o",
                                tmp_path / "m.vmem", "-t", "1"], stdout=subprocess.PIPE,
                               stderr=child)
    os.close(child)
    shown = b""
    while True:
        try:
            shown += os.read(parent, 4096)
        except OSError:  # the program closed its end
            break
    assert process.wait(60) == 0
    assert b"\r" in shown and b"[####" in shown and b"left" in shown
    assert b"[" not in process.stdout.read()
