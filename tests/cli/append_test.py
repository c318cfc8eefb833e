"""Several texts in one memory: joined at once, appended later, folded again. Whatever the way, the
memory is the one that folding the whole text at once would have made."""
import os
import shutil
import signal
import subprocess
import time

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file

from conftest import CACHE, FACTS, SMOL, WIRED, model, program, volvelle, wired_text
from streams_test import limited

MORE = "f04 k21 v07 f05 k22 v08 f06"


@pytest.fixture()
def texts(tmp_path):
    """Three texts with all kinds of ends."""
    contents = [FACTS + "\n", "\n\n  " + MORE + " \n\n", "f07 k23 v09 f08"]
    paths = [tmp_path / name for name in ("a.txt", "b.txt", "c.txt")]
    for path, content in zip(paths, contents):
        path.write_text(content)
    return paths


@pytest.fixture(scope="module")
def stories(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stories")
    novel = (CACHE / "texts/prideprejudice.txt").read_text()
    begin = novel.index("It is a truth universally acknowledged")
    paths = [folder / "one.txt", folder / "two.txt"]
    paths[0].write_text(novel[begin:begin + 700])
    paths[1].write_text(novel[begin + 700:begin + 1200])
    return paths


def fold(*flags, name=WIRED, **more):
    return volvelle("fold", "-m", name, "-t", 1, "--deterministic", *flags, **more)


def append(memory, *flags, **more):
    return volvelle("fold", "--append", "-o", memory, "-t", 1, "--deterministic", *flags, **more)


def many(paths):
    return [part for path in paths for part in ("-f", path)]


def sources_of(memory):
    with safe_open(memory, "numpy") as file:
        return [(line.split(" ", 2)[2], int(line.split()[0]), int(line.split()[1]))
                for line in file.metadata()["sources"].splitlines()]


# --- several texts at once -------------------------------------------------------------------


def test_texts_are_joined_with_a_blank_line(texts, tmp_path):
    memory = tmp_path / "m.vmem"
    found = fold(*many(texts), "-o", memory, "--json").json
    contents = [path.read_text() for path in texts]
    joined = "\n\n".join(contents)
    stored = load_file(memory)
    assert bytes(stored["text"]).decode() == joined
    ends = [joined.index(content) + len(content) for content in contents]
    expected = [(path.name, end - len(content), end)
                for path, content, end in zip(texts, contents, ends)]
    assert sources_of(memory) == expected
    assert [(s["name"], s["begin"], s["end"]) for s in found["sources"]] == expected
    (tmp_path / "joined.txt").write_text(joined)
    fold("-f", tmp_path / "joined.txt", "-o", tmp_path / "j.vmem")
    whole = load_file(tmp_path / "j.vmem")
    for key in whole:
        if key != "checks":
            np.testing.assert_array_equal(stored[key], whole[key])
    assert volvelle("ask", memory, "k22", "-t", 1, "--json").json["answer"].strip() == "v08"


def test_one_text_has_one_source(facts):
    assert sources_of(facts[1]) == [(facts[0].name, 0, len(FACTS))]


def test_names_of_sources_are_one_line(tmp_path):
    path = tmp_path / "a\nb\x1b.txt"
    path.write_text(FACTS)
    bad = tmp_path / os.fsdecode(b"caf\xe9.txt")
    bad.write_text(MORE)
    fold("-f", path, "-f", bad, "-o", tmp_path / "m.vmem")
    assert [name for name, _, _ in sources_of(tmp_path / "m.vmem")] == ["a\\nb\\x1b.txt",
                                                                       "caf\ufffd.txt"]


def test_every_text_is_checked_before_any_work(texts, tmp_path):
    texts[2].write_bytes(b"bad \xff")
    failed = fold(*many(texts), "-o", tmp_path / "m.vmem", code=1)
    assert "c.txt" in failed.error and "tokens" not in failed.err
    assert "input" in fold(*many(texts[:2]), "-o", texts[1], code=2).error


def test_run_reads_texts_then_the_prompt(texts):
    base = ["run", "-m", WIRED, "-n", 2, "-t", 1, "--json"]
    contents = [path.read_text() for path in texts[:2]]
    expected = volvelle(*base, "-p", "\n\n".join([*contents, "k21"])).json
    found = volvelle(*base, *many(texts[:2]), "-p", "k21").json
    assert found["text"].strip() == "v07"
    assert (found["text"], found["n_prompt"]) == (expected["text"], expected["n_prompt"])
    both = volvelle(*base, *many(texts[:2])).json
    assert both["n_prompt"] == volvelle(*base, "-p", "\n\n".join(contents)).json["n_prompt"]
    assert "prompt" in volvelle("run", "-m", WIRED, "-n", 1, code=2).error


# --- appending -------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", ["full", "full+kv(k=f32,v=q8_0)", "sink(1)+window(64)"])
def test_appended_is_folded_at_once(texts, tmp_path, spec):
    if "window" in spec:  # long enough for the window to drop rows
        for i, path in enumerate(texts):
            path.write_text(wired_text(300, seed=i))
    at_once, appended = tmp_path / "once.vmem", tmp_path / "appended.vmem"
    fold(*many(texts), "-o", at_once, "--memory", spec, "--chunk", 64)
    first = fold("-f", texts[0], "-o", appended, "--memory", spec, "--chunk", 64, "--json").json
    second = append(appended, "-f", texts[1], "--json").json
    assert second["n_cached"] >= first["n_tokens"] - 1
    third = append(appended, "-f", texts[2], "--json").json
    assert third["n_cached"] >= second["n_tokens"] - 3  # the blank end of b.txt is text only now
    assert third["file_bytes"] == appended.stat().st_size
    assert appended.read_bytes() == at_once.read_bytes()
    volvelle("inspect", appended, "--verify")


@pytest.mark.parametrize("format", ["chat", "raw"])
def test_appended_is_folded_at_once_with_a_real_model(stories, tmp_path, format):
    flags = ["--format", format, "--chunk", 64]
    fold(*many(stories), "-o", tmp_path / "once.vmem", *flags, name=SMOL)
    first = fold("-f", stories[0], "-o", tmp_path / "m.vmem", *flags, "--json", name=SMOL).json
    found = append(tmp_path / "m.vmem", "-f", stories[1], "--json").json
    assert found["n_cached"] >= first["n_tokens"] - 2
    once, appended = (load_file(tmp_path / name) for name in ("once.vmem", "m.vmem"))
    for key in ["tokens", "ranges", "text"]:
        np.testing.assert_array_equal(once[key], appended[key])
    assert (tmp_path / "once.vmem").read_bytes() == (tmp_path / "m.vmem").read_bytes()


def test_several_texts_are_appended_at_once(texts, tmp_path):
    fold(*many(texts), "-o", tmp_path / "once.vmem")
    fold("-f", texts[0], "-o", tmp_path / "m.vmem")
    append(tmp_path / "m.vmem", *many(texts[1:]))
    assert (tmp_path / "m.vmem").read_bytes() == (tmp_path / "once.vmem").read_bytes()


def test_what_is_said_about_an_append(texts, tmp_path):
    fold("-f", texts[0], "-o", tmp_path / "m.vmem")
    run = append(tmp_path / "m.vmem", "-f", texts[1])
    assert "appended to a memory of 11 tokens" in run.out and "folded 12 tokens" in run.out


@pytest.fixture()
def memory(texts, tmp_path):
    """A memory, and a check that it is still what it was and that nothing lies beside it."""
    path = tmp_path / "keep" / "m.vmem"
    path.parent.mkdir()
    fold("-f", texts[0], "-o", path)
    before = path.read_bytes()
    yield path
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == ["m.vmem"]


@pytest.mark.parametrize("flags, code, said", [
    (["--memory", "sink(1)+window(64)"], 2, "--from"),
    (["-ctk", "f32"], 2, "k=f32"),
    (["--chunk", 7], 2, "--chunk 7"),
    (["--format", "chat"], 2, "format"),
    (["--chat-template", "chatml"], 2, "chatml"),
    (["--from", "x"], 2, "--from"),
    (["-m", SMOL], 1, "fingerprint"),
    (["-m", "no-such.gguf"], 1, "no-such.gguf"),
    (["-c", 12], 1, "12"),
    (["-f", "no-such-text.txt"], 1, "no-such-text.txt"),
])
def test_contradictions_are_refused(texts, memory, flags, code, said):
    failed = append(memory, "-f", texts[1], *flags, code=code)
    assert said in failed.error and failed.out == ""


def test_flags_that_repeat_what_the_file_says_are_fine(texts, tmp_path):
    fold("-f", texts[0], "-o", tmp_path / "m.vmem")
    append(tmp_path / "m.vmem", "-f", texts[1], "--memory", "full", "-ctk", "f16", "--chunk", 256,
           "--format", "raw", "-m", WIRED)


def test_nothing_to_append(texts, memory):
    assert "-f" in append(memory, code=2).error
    texts[1].write_text(" \n")
    assert "empty" in append(memory, "-f", texts[1], code=1).error
    assert "binary" in append(memory, "-f", memory, code=1).error


def test_appending_to_what_is_no_memory(texts, tmp_path):
    absent = tmp_path / "absent.vmem"
    assert "absent.vmem" in append(absent, "-f", texts[0], code=1).error
    assert not absent.exists()
    other = tmp_path / "other.vmem"
    other.write_bytes(b"the old file")
    append(other, "-f", texts[0], code=1)
    assert other.read_bytes() == b"the old file"
    append(tmp_path, "-f", texts[0], code=2)


def test_a_damaged_memory_is_not_extended(texts, tmp_path):
    memory = tmp_path / "m.vmem"
    fold("-f", texts[0], "-o", memory)
    damaged = bytearray(memory.read_bytes())
    damaged[len(damaged) // 2] ^= 1  # in the rows
    memory.write_bytes(damaged)
    append(memory, "-f", texts[1], code=1)
    assert memory.read_bytes() == damaged


@pytest.mark.parametrize("number, code", [(signal.SIGINT, 130), (signal.SIGTERM, 130),
                                          (signal.SIGKILL, -9)])
def test_an_interrupted_append_leaves_the_old_file(memory, tmp_path, number, code):
    (tmp_path / "long.txt").write_text(wired_text(40000))
    process = subprocess.Popen([program(), "fold", "--append", "-o", memory, "-f",
                                tmp_path / "long.txt", "-t", "1"], stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE)
    while b"tokens" not in process.stderr.readline():
        pass
    time.sleep(0.2)
    process.send_signal(number)
    out, _ = process.communicate(timeout=30)
    assert process.returncode == code and out == b""


def test_a_full_disk_is_found_before_the_work(memory, tmp_path):
    (tmp_path / "more.txt").write_text(wired_text(2000))
    command = ["fold", "--append", "-o", memory, "-f", tmp_path / "more.txt", "-t", 1]
    done = limited(command, 1_000_000)
    assert done.returncode == 1 and b"tokens" not in done.stderr


def test_two_appends_at_once_lose_nothing(tmp_path):
    memory = tmp_path / "m.vmem"
    (tmp_path / "t.txt").write_text(FACTS)
    fold("-f", tmp_path / "t.txt", "-o", memory)
    names = []
    for i in range(4):
        names.append(tmp_path / f"{i}.txt")
        names[-1].write_text(wired_text(800, seed=i))
    runs = [subprocess.Popen([program(), "fold", "--append", "-o", memory, "-f", name, "-t", "1"],
                             stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) for name in names]
    errors = [run.communicate(timeout=60)[1].decode() for run in runs]
    assert any(run.returncode == 0 for run in runs)
    volvelle("inspect", memory, "--verify")
    text = bytes(load_file(memory)["text"]).decode()
    for run, name, error in zip(runs, names, errors):
        assert (name.read_text() in text) == (run.returncode == 0), error
        assert run.returncode == 0 or "another process" in error


def test_a_memory_that_was_replaced_meanwhile_is_kept(tmp_path):
    memory, other = tmp_path / "m.vmem", tmp_path / "other.vmem"
    (tmp_path / "t.txt").write_text(FACTS)
    (tmp_path / "long.txt").write_text(wired_text(6000))
    fold("-f", tmp_path / "t.txt", "-o", memory)
    shutil.copy(memory, other)
    process = subprocess.Popen([program(), "fold", "--append", "-o", memory, "-f",
                                tmp_path / "long.txt", "-t", "1"], stdout=subprocess.DEVNULL,
                               stderr=subprocess.PIPE)
    while b"tokens" not in process.stderr.readline():
        pass
    os.replace(other, memory)
    kept = memory.read_bytes()
    error = process.communicate(timeout=60)[1]
    assert process.returncode == 1 and b"replaced" in error
    assert memory.read_bytes() == kept


# --- folding again ---------------------------------------------------------------------------


def test_from_is_folding_the_text_again(texts, tmp_path):
    old, new, direct = (tmp_path / name for name in ("old.vmem", "new.vmem", "direct.vmem"))
    fold(*many(texts), "-o", old, "--chunk", 64)
    before = old.read_bytes()
    for flags in [[], ["--memory", "sink(1)+window(64)"], ["-ctk", "f32", "-ctv", "q8_0"],
                  ["--chunk", "32"]]:
        chunk = [] if "--chunk" in flags else ["--chunk", 64]
        volvelle("fold", "--from", old, "-o", new, "-t", 1, "--deterministic", *flags)
        fold(*many(texts), "-o", direct, *flags, *chunk)
        assert new.read_bytes() == direct.read_bytes(), flags
    assert old.read_bytes() == before


def test_from_keeps_the_spec_and_replaces_only_what_is_said(texts, tmp_path):
    old = tmp_path / "old.vmem"
    fold("-f", texts[0], "-o", old, "--memory", "full+kv(k=f32,v=f32)")
    again = ["fold", "--from", old, "-o", tmp_path / "n.vmem", "-t", 1, "--json"]
    assert volvelle(*again).json["spec"] == "full+kv(k=f32,v=f32)"
    assert volvelle(*again, "-ctk", "q8_0").json["spec"] == "full+kv(k=q8_0,v=f32)"
    assert volvelle(*again, "--memory", "full").json["spec"] == "full"


def test_from_another_model(texts, stories, tmp_path):
    old, new = tmp_path / "old.vmem", tmp_path / "new.vmem"
    fold("-f", stories[0], "-o", old, name=SMOL)
    assert volvelle("inspect", old, "--json").json["chat_format"] == "chat"
    # The wired retriever has no chat template, and the old format is not dropped silently.
    again = ["fold", "--from", old, "-o", new, "-m", WIRED, "-t", 1]
    assert "--format raw" in volvelle(*again, code=1).error
    volvelle(*again, "--format", "raw")
    shown = volvelle("inspect", new, "--json").json
    assert (shown["chat_format"], shown["model_path"]) == ("raw", str(model(WIRED)))
    assert bytes(load_file(new)["text"]) == stories[0].read_bytes()
    assert sources_of(new) == sources_of(old)


def test_wrong_uses_of_from(texts, tmp_path):
    old = tmp_path / "old.vmem"
    fold("-f", texts[0], "-o", old)
    assert "-f" in volvelle("fold", "--from", old, "-o", tmp_path / "n", "-f", texts[1],
                            code=2).error
    assert "input" in volvelle("fold", "--from", old, "-o", old, code=2).error
    assert "absent" in volvelle("fold", "--from", tmp_path / "absent", "-o", tmp_path / "n",
                                code=1).error
    assert "-m" in volvelle("fold", "-f", texts[0], "-o", tmp_path / "n", code=2).error
    assert sorted(os.listdir(tmp_path)) == ["a.txt", "b.txt", "c.txt", "old.vmem"]
