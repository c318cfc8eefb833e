"""kill -9 at 100 seeded moments of a fold: afterwards the file is the old one or the new one, whole,
nothing else lies in its folder but what docs/memory_file.md allows, and the next fold works."""
import os
import random
import re
import subprocess
import time

import pytest

from conftest import FACTS, WIRED, model, program, volvelle, wired_text

KILLS = 100
STRAY = re.compile(r"\.m\.vmem\.\d+\.[0-9a-f]{16}\.tmp$")


@pytest.fixture(scope="module")
def folds(tmp_path_factory):
    """An old memory, the command that replaces it, the new memory, and how long that takes."""
    folder = tmp_path_factory.mktemp("kill")
    (folder / "old.txt").write_text(FACTS)
    (folder / "new.txt").write_text(wired_text(1500))
    (folder / "out").mkdir()
    memory = folder / "out" / "m.vmem"
    command = [program(), "fold", "-m", str(model(WIRED)), "-t", "1", "--deterministic", "-o",
               str(memory), "-f"]
    contents, seconds = [], []
    for name in ("old", "new", "new"):
        start = time.monotonic()
        subprocess.run([*command, str(folder / f"{name}.txt")], check=True, capture_output=True)
        seconds.append(time.monotonic() - start)
        contents.append(memory.read_bytes())
    assert contents[1] == contents[2] != contents[0]  # so bytes tell which file it is
    return memory, [*command, str(folder / "new.txt")], contents[0], contents[1], min(seconds[1:])


def moments(seconds):
    """Half of them anywhere, half near the end, where the file gets its name."""
    choose = random.Random(20)
    for i in range(KILLS):
        yield seconds * (choose.uniform(0.0, 1.0) if i % 2 else choose.uniform(0.75, 1.25))


def test_killed_folds_leave_the_old_file_or_the_new_one(folds):
    memory, command, old, new, seconds = folds
    n_killed = n_new = 0
    for moment in moments(seconds):
        memory.write_bytes(old)
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(moment)
        process.kill()
        killed = process.wait() == -9
        left = memory.read_bytes()
        assert left in (old, new)
        assert killed or left == new  # who said that it is done has done it
        n_killed, n_new = n_killed + killed, n_new + (left == new)
        for name in set(os.listdir(memory.parent)) - {"m.vmem"}:
            assert STRAY.match(name), name
            # Between its two last steps the file has this name, and is complete.
            assert (memory.parent / name).read_bytes() == new
            (memory.parent / name).unlink()
    assert n_killed >= KILLS // 2  # most moments do fall into the fold
    assert n_new < KILLS
    subprocess.run(command, check=True, capture_output=True)
    assert memory.read_bytes() == new
    volvelle("inspect", memory, "--verify")


def test_killed_appends_leave_the_memory(folds, tmp_path):
    memory, _, old, _, seconds = folds
    (tmp_path / "more.txt").write_text(wired_text(1000, seed=3))
    command = [program(), "fold", "--append", "-o", str(memory), "-f", str(tmp_path / "more.txt"),
               "-t", "1", "--deterministic"]
    memory.write_bytes(old)
    subprocess.run(command, check=True, capture_output=True)
    new = memory.read_bytes()
    choose = random.Random(21)
    for _ in range(15):
        memory.write_bytes(old)
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(seconds * choose.uniform(0.2, 1.2))
        process.kill()
        process.wait()
        assert memory.read_bytes() in (old, new)
        for name in set(os.listdir(memory.parent)) - {"m.vmem"}:
            assert STRAY.match(name), name
            (memory.parent / name).unlink()
