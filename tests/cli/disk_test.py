"""Full disks and folders that can not be written to: said before the work, and the old file stays.

The file systems are mounted in a mount namespace of the test's own, so nothing is left behind; where
that is not permitted the tests say so and are skipped.
"""
import functools
import os
import shlex
import subprocess

import pytest

from conftest import FACTS, WIRED, model, program, wired_text

SMALL = 2 << 20  # bytes of the full disk; a token of the wired retriever takes 1 KiB


@functools.cache
def namespace():
    """The command in front of a shell that may mount, or nothing."""
    for command in [["unshare", "-m"], ["unshare", "-rm"]]:
        probe = ["sh", "-c", "mount -t tmpfs -o size=64k tmpfs /mnt"]
        try:
            if subprocess.run(command + probe, capture_output=True).returncode == 0:
                return command
        except FileNotFoundError:
            pass
    return None


class Mounted:
    """A folder with a file system of its own while a script runs."""

    def __init__(self, folder, prepare):
        self.folder, self.prepare = folder, prepare

    def run(self, *commands):
        """Runs the commands one after the other; each one's exit code, stdout and stderr, then what
        the folder holds: {name: bytes}."""
        if namespace() is None:
            pytest.skip("mounting file systems is not permitted here")
        out = self.folder.parent / "results"
        out.mkdir()
        lines = [self.prepare.replace("FOLDER", shlex.quote(str(self.folder)))]
        for i, command in enumerate(commands):
            words = " ".join(shlex.quote(str(word)) for word in command)
            lines.append(f"code=0; {words} >{out}/{i}.out 2>{out}/{i}.err || code=$?; "
                         f"echo $code >{out}/{i}.code")
        lines.append(f"mkdir {out}/files; cp -a {shlex.quote(str(self.folder))}/. {out}/files/")
        done = subprocess.run([*namespace(), "sh", "-ec", "\n".join(lines)], capture_output=True,
                              timeout=120)
        assert done.returncode == 0, done.stderr
        runs = [(int((out / f"{i}.code").read_text()), (out / f"{i}.out").read_text(),
                 (out / f"{i}.err").read_text()) for i in range(len(commands))]
        files = {name: (out / "files" / name).read_bytes() for name in os.listdir(out / "files")}
        return runs, files


@pytest.fixture()
def disk(tmp_path):
    folder = tmp_path / "disk"
    folder.mkdir()
    return Mounted(folder, f"mount -t tmpfs -o size={SMALL} tmpfs FOLDER")


def fold(text, memory, *flags):
    return [program(), "fold", "-m", model(WIRED), "-f", text, "-o", memory, "-t", 1, *flags]


@pytest.fixture()
def texts(tmp_path):
    paths = {name: tmp_path / f"{name}.txt" for name in ("small", "half", "large")}
    paths["small"].write_text(FACTS)
    paths["half"].write_text(wired_text(1200))
    paths["large"].write_text(wired_text(4000))
    return paths


def test_a_full_disk_is_said_before_the_work(disk, texts):
    memory = disk.folder / "m.vmem"
    runs, files = disk.run(fold(texts["small"], memory), fold(texts["large"], memory),
                           [program(), "ask", memory, "k17", "-t", 1])
    assert runs[0][0] == 0, runs[0]
    code, out, err = runs[1]
    assert (code, out) == (1, "")
    lines = [line for line in err.splitlines() if line.startswith("volvelle")]
    assert len(lines) == 1
    assert "free disk space" in lines[0] and "m.vmem" in lines[0]
    assert "tokens/s" not in err  # nothing was read
    assert (runs[2][0], runs[2][1].strip()) == (0, "v42")  # the old file answers
    assert list(files) == ["m.vmem"]


def test_a_disk_that_holds_one_file_but_not_two_keeps_the_old_one(disk, texts):
    memory = disk.folder / "m.vmem"
    runs, files = disk.run(fold(texts["half"], memory), ["cp", memory, disk.folder / "../copy"],
                           fold(texts["half"], memory), [program(), "inspect", memory, "--verify"])
    assert [code for code, _, _ in runs] == [0, 0, 1, 0], runs
    assert list(files) == ["m.vmem"]
    assert files["m.vmem"] == (disk.folder.parent / "copy").read_bytes()


def test_a_disk_that_is_full_of_other_files(disk, texts):
    memory = disk.folder / "m.vmem"
    runs, files = disk.run(["sh", "-c", f"head -c {3 << 20} /dev/zero >{disk.folder}/other; true"],
                           fold(texts["small"], memory),
                           [program(), "capture", "-m", model(WIRED), "-f", texts["small"], "-o",
                            disk.folder / "c", "-t", 1])
    for code, out, err in runs[1:]:
        assert code == 1 and out == ""
        assert err.count("volvelle ") == 1
    assert list(files) == ["other"]


def test_appending_on_a_full_disk_keeps_the_memory(disk, texts):
    memory = disk.folder / "m.vmem"
    runs, files = disk.run(fold(texts["half"], memory), ["cp", memory, disk.folder / "../copy"],
                           [program(), "fold", "--append", "-o", memory, "-f", texts["small"],
                            "-t", 1])
    assert [code for code, _, _ in runs] == [0, 0, 1], runs
    assert "free disk space" in runs[2][2]
    assert files == {"m.vmem": (disk.folder.parent / "copy").read_bytes()}


@pytest.fixture()
def read_only(tmp_path, texts):
    """A folder with a memory, mounted read-only."""
    folder = tmp_path / "frozen"
    folder.mkdir()
    subprocess.run([str(word) for word in fold(texts["small"], folder / "m.vmem")], check=True,
                   capture_output=True)
    return Mounted(folder, "mount --bind FOLDER FOLDER; mount -o remount,ro,bind FOLDER")


def test_a_read_only_folder_is_read_and_not_written(read_only, texts):
    memory = read_only.folder / "m.vmem"
    before = memory.read_bytes()
    runs, files = read_only.run([program(), "ask", memory, "k17", "-t", 1],
                                [program(), "inspect", memory, "--verify"],
                                fold(texts["half"], memory),
                                fold(texts["half"], read_only.folder / "new.vmem"),
                                [program(), "fold", "--append", "-o", memory, "-f",
                                 texts["small"], "-t", 1])
    assert (runs[0][0], runs[0][1].strip()) == (0, "v42")
    assert runs[1][0] == 0
    for code, out, err in runs[2:]:
        assert (code, out) == (1, "")
        lines = [line for line in err.splitlines() if line.startswith("volvelle")]
        assert len(lines) == 1, err
        assert "frozen" in lines[0]
        assert "can not be written" in lines[0] or "ead-only" in lines[0]
        assert "tokens/s" not in err
    assert files == {"m.vmem": before}


def test_a_folder_without_permission_is_named(tmp_path, texts):
    folder = tmp_path / "closed"
    folder.mkdir()
    folder.chmod(0o500)
    probe = folder / "probe"
    try:
        probe.touch()
    except PermissionError:
        pass
    else:
        probe.unlink()
        pytest.skip("this user may write everywhere")
    done = subprocess.run([str(word) for word in fold(texts["small"], folder / "m.vmem")],
                          capture_output=True)
    assert done.returncode == 1 and b"closed" in done.stderr and b"not writable" in done.stderr
    assert os.listdir(folder) == []
