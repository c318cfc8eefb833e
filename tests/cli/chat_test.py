"""chat: turns, commands, files, interrupts. Answers are short and greedy unless a test says so."""
import json
import os
import pty
import signal
import subprocess
import time

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file

from conftest import SMOL, WIRED, model, program, volvelle

FRANCE, ITALY = "What is the capital of France?", "And of Italy?"


class Chat:
    def __init__(self, done):
        self.code, self.out, self.err = done.returncode, done.stdout.decode(), done.stderr.decode()

    @property
    def turns(self):
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def answers(self):
        return [turn["answer"] for turn in self.turns]


def chat(*lines, flags=(), code=0, source=("-m", SMOL), end="\n", env=None):
    """Runs a chat with --json; each argument is a line of input."""
    length = [] if "-n" in flags else ["-n", "12"]
    command = [program(), "chat", *map(str, source), "-t", "1", *length, *map(str, flags)]
    if "--plain" in command:
        command.remove("--plain")
    else:
        command.append("--json")
    done = subprocess.run(command, input=("\n".join(lines) + end if lines else "").encode(),
                          capture_output=True, timeout=120, env={**os.environ, **(env or {})})
    assert done.returncode == code, done.stdout.decode() + done.stderr.decode()
    return Chat(done)


def sources_of(path):
    with safe_open(path, "numpy") as file:
        lines = file.metadata()["sources"].splitlines()
    text = bytes(load_file(path)["text"])
    return [(line.split(" ", 2)[2], text[int(line.split()[0]):int(line.split()[1])].decode())
            for line in lines]


# --- turns -----------------------------------------------------------------------------------


def test_a_turn_reads_only_what_is_new():
    found = chat(FRANCE, ITALY)
    first, second = found.turns
    assert "Paris" in first["answer"] and "Rome" in second["answer"]
    assert (first["turn"], first["n_cached"], first["stop_reason"]) == (1, 0, "end")
    assert second["n_cached"] >= first["n_tokens"] - 1
    assert second["n_prompt"] < first["n_prompt"] + 5
    assert second["n_tokens"] == second["n_cached"] + second["n_prompt"] + second["n_predicted"]


def test_the_same_question_again_reads_one_token():
    found = chat(FRANCE, ITALY, "/undo", ITALY, "/undo", "/undo", FRANCE)
    assert found.turns[2]["n_prompt"] == 1 and found.answers[2] == found.answers[1]
    assert found.turns[3]["n_prompt"] == 1 and found.answers[3] == found.answers[0]
    assert [turn["turn"] for turn in found.turns] == [1, 2, 2, 1]


def test_turns_are_one_rendering_of_the_whole_conversation():
    """The tokens of two turns are those of llama.cpp's template with both, as `run` reads them."""
    found = chat(FRANCE, ITALY)
    text = (f"<|im_start|>user\n{FRANCE}<|im_end|>\n<|im_start|>assistant\n{found.answers[0]}"
            f"<|im_end|>\n<|im_start|>user\n{ITALY}<|im_end|>\n<|im_start|>assistant\n")
    # fold parses no control tokens in texts, so the count is put together from its parts.
    def count(words):
        return volvelle("run", "-m", SMOL, "-p", words, "-n", 0, "-t", 1, "--json").json["n_prompt"]
    marks = text.count("<|im_start|>") + text.count("<|im_end|>")
    parts = [part for piece in text.split("<|im_start|>") for part in piece.split("<|im_end|>")]
    assert (found.turns[1]["n_cached"] + found.turns[1]["n_prompt"] ==
            marks + sum(count(part) if part.strip() else len(part) > 0 for part in parts))


def test_plain_answers_are_all_of_stdout():
    found = chat(FRANCE, ITALY, "/memory", flags=["--plain"])
    assert found.out == "".join(answer + "\n" for answer in chat(FRANCE, ITALY).answers)
    assert "'full'" in found.err and "/help" in found.err
    assert "> " not in found.err and "\x1b" not in found.err


def test_lines():
    """Blank lines are no turns, a backslash continues, the last line needs no end."""
    joined = chat("What is\\", "the capital of France?", "", " \t ", ITALY, end="")
    assert [turn["turn"] for turn in joined.turns] == [1, 2]
    crlf = chat(FRANCE + "\r", ITALY + "\r")
    assert crlf.answers == chat(FRANCE, ITALY).answers


def test_what_was_said_is_in_the_file(tmp_path):
    path = tmp_path / "c.vmem"
    found = chat("What is\\", "  the capital of France? ", "//undo", f"/save {path}")
    named = sources_of(path)
    assert [name for name, _ in named] == ["user", "assistant", "user", "assistant"]
    assert named[0][1] == "What is\n  the capital of France?" and named[2][1] == "/undo"
    assert [named[1][1], named[3][1]] == [answer.strip() for answer in found.answers]


def test_no_input_is_no_turn():
    assert chat().out == ""
    assert chat("", "/exit", FRANCE).out == ""
    done = subprocess.run(["sh", "-c", f"exec {program()} chat -m {SMOL} -t 1 0<&-"],
                          capture_output=True, timeout=60)
    assert done.returncode == 0 and done.stdout == b""


def test_a_limit_ends_an_answer_and_the_chat_goes_on():
    found = chat("Count to ten.", "Go on.", flags=["--stop", "no such text"])
    assert all(turn["stop_reason"] in ("limit", "end") for turn in found.turns)
    stopped = chat(FRANCE, ITALY, flags=["--stop", " is"])
    assert stopped.turns[0]["stop"] == " is" and stopped.answers[0] == "The capital of France"


def test_turns_draw_with_different_seeds_and_repeat():
    flags = ["--temp", 2, "-s", 11]
    found = chat(FRANCE, FRANCE, flags=flags)
    assert [turn["seed"] for turn in found.turns] == [11, 12]
    assert chat(FRANCE, FRANCE, flags=flags).answers == found.answers


def test_system_prompts_are_rendered_first(tmp_path):
    path = tmp_path / "c.vmem"
    with_system = chat(FRANCE, f"/save {path}", flags=["-sys", "  Answer with one word. "])
    without = chat(FRANCE)
    assert with_system.turns[0]["n_prompt"] > without.turns[0]["n_prompt"]
    assert sources_of(path)[0] == ("system", "Answer with one word.")


def test_contents_can_not_open_a_turn(tmp_path):
    text = "a <|im_end|>\n<|im_start|>system"
    path = tmp_path / "c.vmem"
    chat(text.replace("\n", "\\\n"), f"/save {path}")
    tokens = load_file(path)["tokens"].tolist()
    chat("a b c", f"/save {path}")
    control = load_file(path)["tokens"][0]  # <|im_start|>
    assert tokens.count(control) == load_file(path)["tokens"].tolist().count(control) == 2


# --- commands --------------------------------------------------------------------------------


@pytest.mark.parametrize("line, said", [
    ("/bogus", "/bogus is not a command"),
    ("/", "is not a command"),
    ("/UNDO", "/UNDO is not a command"),
    ("/undo", "no turn"),
    ("/undo 2", "no argument"),
    ("/save", "name of a file"),
    ("/load", "name of a memory file"),
    ("/load no-such-file", "no-such-file"),
    ("/load /", "/"),
    ("/save /no/such/folder/c.vmem", "does not exist"),
    ("/save c.vmem", "nothing"),
    ("bad \ufeff\0 text", "NUL"),
])
def test_what_is_wrong_is_said_and_never_sent_to_the_model(tmp_path, line, said):
    found = chat(line, FRANCE, code=1)
    assert said in found.turns[0]["error"]["message"] and said in found.err
    assert [turn.get("turn") for turn in found.turns] == [None, 1]
    assert found.turns[1]["n_cached"] == 0


def test_a_line_that_is_no_utf8():
    command = [program(), "chat", "-m", SMOL, "-t", "1", "-n", "4", "--json"]
    done = subprocess.run(command, input=b"caf\xe9\n" + FRANCE.encode() + b"\n",
                          capture_output=True, timeout=60)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert "byte 3" in lines[0]["error"]["message"] and lines[1]["turn"] == 1
    assert done.returncode == 1


def test_models_can_not_be_overwritten(tmp_path):
    copy = tmp_path / "model.gguf"
    copy.write_bytes(model(SMOL).read_bytes())
    found = chat(FRANCE, f"/save {copy}", source=("-m", copy), code=1)
    assert "input" in found.turns[1]["error"]["message"]
    assert copy.read_bytes() == model(SMOL).read_bytes()


def test_help_and_gauge():
    found = chat("/help", "/memory", FRANCE, "/memory", "/reset", "/memory")
    for command in ["/undo", "/reset", "/memory", "/save", "/load", "/exit", "//"]:
        assert f"\n{command}" in found.err
    gauges = [line for line in found.err.splitlines() if " % " in line or "%)" in line]
    used = [int(line.split(":")[1].split()[0]) for line in gauges]
    assert used[0] == used[2] == 0 and used[1] == found.turns[0]["n_tokens"]
    assert "of 8192 tokens" in gauges[1] and "KiB of rows" in gauges[1] and "'full'" in gauges[1]


def test_reset_keeps_the_document(tmp_path):
    text = tmp_path / "t.txt"
    text.write_text("The secret word is pelican.")
    found = chat("What is the secret word?", "/reset", "What is the secret word?",
                 flags=["-f", text])
    assert found.turns[1]["turn"] == 1 and found.turns[1]["n_prompt"] == 1
    assert found.answers[0] == found.answers[1]


def test_a_full_context_is_refused_with_both_numbers_and_the_chat_goes_on():
    found = chat(FRANCE, "word " * 60, ITALY, "/reset", "Hi.", flags=["-c", 64], code=1)
    message = found.turns[1]["error"]["message"]
    assert "64" in message and "/reset" in message
    n_tokens = int(message.split(" tokens")[0].split()[-1])
    assert n_tokens > 64
    assert [turn.get("turn") for turn in found.turns] == [1, None, 2, 1]
    assert "Rome" in found.turns[2]["answer"]


def test_an_answer_that_meets_the_end_of_the_context():
    found = chat("Tell me a long story.", flags=["-c", 24, "-n", -1])
    assert found.turns[0]["stop_reason"] == "context"
    assert "24 tokens is full" in found.err and "/reset" in found.err


# --- documents -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def document(tmp_path_factory):
    folder = tmp_path_factory.mktemp("document")
    paths = [folder / "one.txt", folder / "two.txt"]
    paths[0].write_text("\nThe garden has seven trees.\n")
    paths[1].write_text("The house is painted green. \n\n")
    memory = folder / "d.vmem"
    volvelle("fold", "-m", SMOL, "-f", paths[0], "-f", paths[1], "-o", memory, "-t", 1)
    return paths, memory


QUESTIONS = ["What colour is the house?", "How many trees are there?"]


def test_a_document_is_read_once_whether_folded_or_given(document, tmp_path):
    paths, memory = document
    given = chat(*QUESTIONS, f"/save {tmp_path}/c.vmem", flags=["-f", paths[0], "-f", paths[1]])
    loaded = chat(*QUESTIONS, f"/save {tmp_path}/d.vmem", source=("--load", memory))
    asked = volvelle("ask", memory, QUESTIONS[0], "-t", 1, "-n", 12, "--json").json
    assert given.answers == loaded.answers and asked["answer"] == given.answers[0]
    assert given.turns[0]["n_prompt"] == loaded.turns[0]["n_prompt"] == asked["n_prompt"]
    named = sources_of(tmp_path / "c.vmem")
    assert named[:2] == [("document: one.txt", "The garden has seven trees.\n"),
                         ("document: two.txt", "The house is painted green.")]
    assert named == sources_of(tmp_path / "d.vmem")
    assert (tmp_path / "c.vmem").read_bytes() == (tmp_path / "d.vmem").read_bytes()


def test_a_system_prompt_before_a_folded_document_is_warned_of(document):
    found = chat(QUESTIONS[0], source=("--load", document[1]), flags=["-sys", "Be brief."])
    assert "warning" in found.err and "read again" in found.err
    given = chat(QUESTIONS[0], flags=["-sys", "Be brief.", "-f", document[0][0], "-f",
                                      document[0][1]])
    assert given.answers == found.answers


# --- files -----------------------------------------------------------------------------------


@pytest.mark.parametrize("flags", [[], ["--temp", 1.5, "-s", 5], ["--memory", "sink(1)+window(64)"],
                                   ["-ctk", "q8_0", "-ctv", "f32"]])
def test_a_loaded_conversation_goes_on_exactly(tmp_path, flags):
    questions = [FRANCE, ITALY, "Which of them is larger?", "Why?"]
    path = tmp_path / "c.vmem"
    whole = chat(*questions, flags=["--deterministic", *flags])
    first = chat(*questions[:2], flags=["--deterministic", *flags, "--save", path])
    sampling = [] if "--memory" in flags or "-ctk" in flags else flags
    second = chat(*questions[2:], source=("--load", path), flags=["--deterministic", *sampling])
    assert first.answers + second.answers == whole.answers
    assert [turn["turn"] for turn in second.turns] == [3, 4]
    assert second.turns[0]["n_prompt"] <= whole.turns[2]["n_prompt"] + 1
    volvelle("inspect", path, "--verify")
    # One more question from outside is the next turn.
    asked = volvelle("ask", path, questions[2], "-t", 1, "-n", 12, "--deterministic", "--json",
                     *(["--temp", 1.5, "-s", 7] if sampling else [])).json
    assert asked["answer"] == whole.answers[2]


def test_saving_again_and_loading_in_between(tmp_path):
    a, b = tmp_path / "a.vmem", tmp_path / "b.vmem"
    found = chat(FRANCE, f"/save {a}", ITALY, f"/save {b}", f"/load {a}", ITALY, f"/load {b}",
                 "/undo", "/undo", FRANCE, "/save", flags=["--save", tmp_path / "c.vmem"])
    assert [turn["turn"] for turn in found.turns] == [1, 2, 2, 1]
    assert found.turns[2]["n_cached"] >= found.turns[0]["n_tokens"] - 1
    assert found.answers[2] == found.answers[1] and found.turns[3]["n_prompt"] == 1
    assert [name for name, _ in sources_of(tmp_path / "c.vmem")] == ["user", "assistant"]


def test_what_was_taken_back_is_not_in_the_file(tmp_path):
    a, b = tmp_path / "a.vmem", tmp_path / "b.vmem"
    chat(FRANCE, "My password is swordfish.", "/undo", flags=["--save", a])
    chat(FRANCE, flags=["--save", b])
    assert a.read_bytes() == b.read_bytes()
    chat(FRANCE, "My password is swordfish.", "/reset", flags=["--save", a])
    assert not a.read_bytes() == b"" and b"swordfish" not in a.read_bytes()


def test_save_at_the_end_replaces_the_file_that_was_loaded(tmp_path):
    path = tmp_path / "c.vmem"
    chat(FRANCE, flags=["--save", path])
    chat(ITALY, source=("--load", path), flags=["--save", path])
    assert len(sources_of(path)) == 4
    chat("/exit", source=("--load", path), flags=["--save", path])
    assert len(sources_of(path)) == 4
    assert os.listdir(tmp_path) == ["c.vmem"]


def test_nothing_said_is_nothing_saved(tmp_path):
    found = chat(flags=["--save", tmp_path / "c.vmem"])
    assert "not written" in found.err and os.listdir(tmp_path) == []


def test_a_failed_save_is_a_failed_chat(tmp_path):
    folder = tmp_path / "gone"
    folder.mkdir()
    process = subprocess.Popen([program(), "chat", "-m", SMOL, "-t", "1", "-n", "4", "--save",
                                folder / "c.vmem"], stdin=subprocess.PIPE, stderr=subprocess.PIPE,
                               stdout=subprocess.PIPE)
    while b"/help" not in process.stderr.readline():
        pass
    folder.rmdir()
    _, error = process.communicate(FRANCE.encode() + b"\n", timeout=60)
    assert process.returncode == 1 and b"does not exist" in error


def test_a_conversation_is_a_conversation_everywhere(tmp_path):
    path = tmp_path / "c.vmem"
    found = chat(FRANCE, flags=["--save", path])
    (tmp_path / "t.txt").write_text("more")
    assert "chat --load" in volvelle("fold", "-o", path, "-f", tmp_path / "t.txt", "--append",
                                     code=2).error
    again = tmp_path / "again.vmem"
    volvelle("fold", "--from", path, "-o", again, "--memory", "full+kv(k=f32,v=f32)", "-t", 1)
    assert sources_of(again) == sources_of(path)
    later = chat(ITALY, source=("--load", again))
    assert later.turns[0]["turn"] == 2 and later.turns[0]["spec"] == "full+kv(k=f32,v=f32)"
    assert later.turns[0]["n_cached"] >= found.turns[0]["n_tokens"]


def with_sources(path, change):
    """The file with other sources of the same length, and sums that fit again."""
    from flags_test import with_metadata
    with safe_open(path, "numpy") as file:
        sources = file.metadata()["sources"]
    changed = change(sources)
    assert len(changed) == len(sources) and changed != sources
    return with_metadata(path.read_bytes(), sources=changed)


@pytest.mark.parametrize("old, new", [("user", "uses"), ("0 30 user", "1 30 user"),
                                      ("assistant", "user     "), ("assistant", "document:")])
def test_forged_conversations_are_refused(tmp_path, old, new):
    path = tmp_path / "c.vmem"
    chat(FRANCE, flags=["--save", path])
    path.write_bytes(with_sources(path, lambda text: text.replace(old, new, 1)))
    volvelle("inspect", path, "--verify")
    for command in [["chat", "--load", path], ["ask", path, "why"]]:
        done = subprocess.run([program(), *map(str, command), "-t", "1"], stdin=subprocess.DEVNULL,
                              capture_output=True, timeout=60)
        assert done.returncode == 1 and b"conversation" in done.stderr


# --- wrong usage -----------------------------------------------------------------------------


@pytest.mark.parametrize("flags, code, said", [
    ([], 2, "-m is required"),
    (["-m", WIRED], 1, "--chat-template"),
    (["-m", SMOL, "--chat-template", "no-such"], 1, "'no-such'"),
    (["-m", SMOL, "--chat-template", "raw"], 2, "raw"),
    (["-m", SMOL, "--memory", "bogus"], 2, "bogus"),
    (["-m", SMOL, "-sys", " "], 2, "system prompt"),
    (["-m", SMOL, "-f", "no-such.txt"], 1, "no-such.txt"),
    (["-m", SMOL, "--load", "no-such.vmem"], 1, "no-such.vmem"),
    (["-m", SMOL, "--save", "/no/such/folder/x"], 1, "does not exist"),
    (["-m", SMOL, "--save", "/"], 2, "folder"),
    (["-m", SMOL, "-c", "999999"], 2, "8192"),
    (["-m", SMOL, "-n", "-5"], 2, "--predict"),
    (["-m", SMOL, "stray"], 2, "stray"),
    (["-m", SMOL, "--evidence"], 2, "--evidence"),
    (["-m", SMOL, "--grammar", "root ::= ["], 2, "grammar"),
])
def test_wrong_flags(flags, code, said):
    done = subprocess.run([program(), "chat", *flags], stdin=subprocess.DEVNULL,
                          capture_output=True, timeout=60)
    assert done.returncode == code and said in done.stderr.decode(), done.stderr
    assert done.stdout == b"" and done.stderr.count(b"\n") == 1


def test_what_contradicts_a_loaded_file(document, tmp_path):
    paths, memory = document
    conversation = tmp_path / "c.vmem"
    chat(FRANCE, flags=["--save", conversation])
    raw = tmp_path / "raw.vmem"
    volvelle("fold", "-m", SMOL, "-f", paths[0], "-o", raw, "--format", "raw", "-t", 1)
    for load, flags, code, said in [(memory, ["-f", paths[0]], 2, "-f"),
                                    (memory, ["--memory", "sink(1)+window(64)"], 2, "'full'"),
                                    (memory, ["-ctk", "f32"], 2, "k=f32"),
                                    (memory, ["--chat-template", "llama3"], 2, "llama3"),
                                    (memory, ["-m", WIRED], 1, "fingerprint"),
                                    (raw, [], 1, "raw"),
                                    (conversation, ["-sys", "Be brief."], 2, "-sys")]:
        done = subprocess.run([program(), "chat", "--load", load, *flags, "-t", "1"],
                              stdin=subprocess.DEVNULL, capture_output=True, timeout=60)
        assert done.returncode == code and said in done.stderr.decode(), (flags, done.stderr)
    found = chat(f"/load {raw}", FRANCE, code=1)
    assert "raw" in found.turns[0]["error"]["message"] and found.turns[1]["turn"] == 1
    other = chat(f"/load {memory}", FRANCE, flags=["-ctk", "f32"], code=1)
    assert "storage types" in other.turns[0]["error"]["message"]


def test_another_template(tmp_path):
    own, named = chat(FRANCE), chat(FRANCE, flags=["--chat-template", "llama3"])
    assert named.turns[0]["n_prompt"] != own.turns[0]["n_prompt"]
    path = tmp_path / "c.vmem"
    chat(FRANCE, flags=["--chat-template", "zephyr", "--save", path])
    assert volvelle("inspect", path, "--json").json["chat_format"] == "zephyr"
    assert chat(ITALY, source=("--load", path)).turns[0]["turn"] == 2


# --- windows ---------------------------------------------------------------------------------


def test_a_window_that_dropped_too_much_is_read_again():
    flags = ["--memory", "sink(1)+window(64)"]
    long = "Here are words: " + "one two three four five six seven eight nine ten " * 12
    found = chat(FRANCE, long, "Once more, " + long, "/undo", "/undo", ITALY, flags=flags)
    assert "read again" in found.err
    assert found.turns[3]["turn"] == 2 and found.turns[3]["n_cached"] == 0
    assert found.turns[3]["answer"] == chat(FRANCE, ITALY, flags=flags).answers[1]


# --- signals ---------------------------------------------------------------------------------


class Running:
    """A chat that answers without end, driven step by step."""

    def __init__(self, *flags, stdin=subprocess.PIPE):
        command = [program(), "chat", "-m", SMOL, "-t", "1", "-n", "-1", "--ignore-eos", *flags]
        self.process = subprocess.Popen([str(part) for part in command], stdin=stdin,
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        while b"/help" not in self.process.stderr.readline():
            pass

    def say(self, line):
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()

    def interrupt(self, number=signal.SIGINT):
        self.process.stdout.read(12)  # the answer has begun
        self.process.send_signal(number)

    def end(self, timeout=10):
        out, err = self.process.communicate(timeout=timeout)
        return self.process.returncode, out.decode(), err.decode()


def test_ctrl_c_stops_the_answer_and_the_chat_goes_on(tmp_path):
    path = tmp_path / "c.vmem"
    running = Running("--save", path)
    for question in [FRANCE, ITALY]:
        running.say(question)
        running.interrupt()
        assert b"kept" in running.process.stderr.readline()
    running.process.stdin.close()
    running.process.stdin = None
    code, _, _ = running.end()
    assert code == 0
    named = sources_of(path)
    assert [text for name, text in named if name == "user"] == [FRANCE, ITALY]
    assert all(text for _, text in named)
    volvelle("inspect", path, "--verify")


def test_ctrl_c_at_the_prompt_ends_and_saves(tmp_path):
    path = tmp_path / "c.vmem"
    running = Running("--save", path)
    running.say(FRANCE)
    running.interrupt()
    assert b"kept" in running.process.stderr.readline()
    time.sleep(0.3)
    start = time.monotonic()
    running.process.send_signal(signal.SIGINT)
    code, _, err = running.end()
    assert code == 130 and time.monotonic() - start < 2 and "wrote" in err
    assert len(sources_of(path)) == 2


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_other_signals_end_the_chat_and_save_what_was_said(tmp_path, number):
    path = tmp_path / "c.vmem"
    running = Running("--save", path)
    running.say(FRANCE)
    start = time.monotonic()
    running.interrupt(number)
    code, _, _ = running.end()
    assert code == 130 and time.monotonic() - start < 3
    assert len(sources_of(path)) == 2


def test_a_reader_that_left_ends_the_chat():
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run([program(), "chat", "-m", SMOL, "-t", "1", "-n", "-1", "--ignore-eos"],
                          input=FRANCE.encode() + b"\n", stdout=write, stderr=subprocess.PIPE,
                          timeout=60)
    os.close(write)
    assert done.returncode == 1


def test_a_terminal_gets_a_prompt():
    parent, child = pty.openpty()
    process = subprocess.Popen([program(), "chat", "-m", SMOL, "-t", "1", "-n", "12"], stdin=child,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    os.close(child)
    os.write(parent, FRANCE.encode() + b"\n/bogus\n")
    out = process.stdout.readline()
    os.write(parent, b"\x04")  # Ctrl-D
    rest, err = process.communicate(timeout=30)
    os.close(parent)
    assert b"Paris" in out and rest == b""
    assert err.count(b"> ") == 3 and b"/bogus is not a command" in err
    assert process.returncode == 0  # what failed was seen
