"""What the command line tests share: the program, the models, and runs with their output taken apart.

The program is $VOLVELLE_BIN or build/release/bin/volvelle; models and texts are those that
scripts/setup.sh puts into the cache folder. Missing ones fail a test, they do not skip it.
"""
import dataclasses
import json
import os
import pathlib
import random
import signal
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
CACHE = pathlib.Path(os.environ.get("VOLVELLE_CACHE", pathlib.Path.home() / ".cache/volvelle"))
SMOL = "smollm2-135m-instruct-q4_1.gguf"
WIRED = "wired-retriever.gguf"
FACTS = "f00 k17 v42 f03 k05 v11 f01 k40 v63 f02"

# Programs inherit ignored signals, and a run under nohup ignores this one; the tests decide themselves.
signal.signal(signal.SIGHUP, signal.SIG_DFL)


def program():
    path = pathlib.Path(os.environ.get("VOLVELLE_BIN", ROOT / "build/release/bin/volvelle"))
    assert path.is_file(), f"{path} is missing: build it first (scripts/test.sh)"
    return str(path)


@dataclasses.dataclass
class Run:
    code: int
    out: str
    err: str

    @property
    def json(self):
        """The one JSON object on stdout."""
        assert self.out.count("\n") == 1, self.out
        return json.loads(self.out)

    @property
    def error(self):
        """The one line of an error."""
        lines = [line for line in self.err.splitlines() if line.startswith("volvelle")]
        assert len(lines) == 1, self.err
        return lines[0]


def volvelle(*arguments, code=0, env=None, timeout=120):
    """Runs the program and checks its exit code."""
    done = subprocess.run([program(), *map(str, arguments)], capture_output=True, timeout=timeout,
                          env={**os.environ, **(env or {})})
    run = Run(done.returncode, done.stdout.decode(), done.stderr.decode())
    assert run.code == code, f"exit {run.code}, expected {code}\n{run.out}\n{run.err}"
    return run


def wired_text(n_tokens, seed=1):
    """Fillers with a fact now and then; about n_tokens words, each one token."""
    choose = random.Random(seed)
    keys = choose.sample(range(64), 20)
    words = ["f00"]
    while len(words) < n_tokens:
        if keys and len(words) % (n_tokens // 20 + 1) == 0:
            words += [f"k{keys.pop():02d}", f"v{choose.randrange(64):02d}"]
        words.append(f"f{choose.randrange(32):02d}")
    return " ".join(words[:n_tokens])


def model(name):
    path = CACHE / "models" / name
    assert path.is_file(), f"{path} is missing: run scripts/setup.sh"
    return path


@pytest.fixture(scope="session")
def facts(tmp_path_factory):
    """A text for the wired retriever and the memory folded from it."""
    folder = tmp_path_factory.mktemp("facts")
    text = folder / "facts.txt"
    text.write_text(FACTS)
    memory = folder / "facts.vmem"
    folded = volvelle("fold", "-m", model(WIRED), "-f", text, "-o", memory, "-t", 1, "--json")
    return text, memory, folded.json


@pytest.fixture(scope="session")
def story(tmp_path_factory):
    """The opening of a novel, in SmolLM2's chat format."""
    folder = tmp_path_factory.mktemp("story")
    text = folder / "story.txt"
    novel = (CACHE / "texts/prideprejudice.txt").read_text()
    begin = novel.index("It is a truth universally acknowledged")
    text.write_text(novel[begin:begin + 1500])
    memory = folder / "story.vmem"
    folded = volvelle("fold", "-m", model(SMOL), "-f", text, "-o", memory, "--chunk", 64, "-t", 1,
                      "--json")
    return text, memory, folded.json
