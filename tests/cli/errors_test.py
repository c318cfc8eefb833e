"""Wrong usage and bad input: the right exit code, one line that says what and why, nothing written."""
import json
import os
import subprocess

import pytest

from conftest import CACHE, FACTS, SMOL, WIRED, model, program, volvelle, wired_text


@pytest.fixture()
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(FACTS)
    return path


def fold(text, tmp_path, *flags, code, name=WIRED):
    run = volvelle("fold", "-m", name, "-f", text, "-o", tmp_path / "out.vmem", "-t", 1, *flags,
                   code=code)
    if code != 0:
        assert not (tmp_path / "out.vmem").exists()
        assert not [name for name in os.listdir(tmp_path) if "out.vmem" in name]
        assert run.out == ""
        assert run.error.startswith("volvelle fold: ")
    return run


@pytest.mark.parametrize("flags, said", [
    (["--nonsense"], "--nonsense"),
    (["--chunk", "0"], "--chunk"),
    (["--chunk", "many"], "--chunk"),
    (["-ub", "0"], "--ubatch-size"),
    (["-ub", "99999999999999999999"], "--ubatch-size"),
    (["-tb", "-1"], "--threads-batch"),
    (["-c", "-5"], "--ctx-size"),
    (["-c", "999999999"], "262144"),        # more than the model's context
    (["-b", "512"], "-ub"),                 # names what to use
    (["--append", "--from", "x"], "--from"),
    (["--memory", ""], "memory"),
    (["--memory", "full+nonsense(3)"], "nonsense"),
    (["--memory", "window(0)"], "window"),
    (["--memory", "sink(4)+window(99999999999999999999)"], "window"),
    (["--memory", "full+topk(k=128,index=exact)"], "index=exact"),
    (["--memory", "full+topk(k=0)"], "k of topk"),
    (["--memory", "full+topk(k=64,bits=12)"], "bits of topk"),
    (["--memory", "sink(4)+window(64)+tail(summary)"], "tail"),
    (["--memory", "full+kv(k=q8_1)"], "q8_1"),
    (["-ctk", "q4_1"], "q4_1"),
    (["-ctk", "float"], "float"),
    (["--memory", "full+kv(k=f32,v=f32)", "-ctk", "f16"], "-ctk"),
    (["--format", "html"], "--format"),
    (["--format", "raw", "--chat-template", "chatml"], "--chat-template"),
])
def test_wrong_flags_are_usage_errors(text, tmp_path, flags, said):
    assert said in fold(text, tmp_path, *flags, code=2).error


@pytest.mark.parametrize("flags, said", [
    (["-n", "-2"], "--predict"), (["--temp", "nan"], "temp"), (["--temp", "-1"], "temp"),
    (["--top-p", "1.5"], "top-p"), (["--min-p", "x"], "--min-p"), (["-s", "-2"], "--seed"),
    (["--top-k", "-3"], "top-k"), (["stray"], "stray"),
])
def test_wrong_flags_of_run(flags, said):
    assert said in volvelle("run", "-m", WIRED, "-p", "f00", *flags, code=2).error


@pytest.mark.parametrize("arguments, said", [
    ([], "subcommand"),
    (["nonsense"], "nonsense"),
    (["chat"], "-m is required"),
    (["serve", "-m", "x"], "this version does not have it"),
    (["bench", "stream"], "this version does not have it"),
    (["bench"], "subcommand"),
    (["fold"], "required"),
    (["ask", "only-a-file"], "QUESTION"),
    (["ask", "file", "question", "--evidence", "0"], "--evidence"),
    (["ask", "file", ""], "question"),
    (["audit", "-m", WIRED, "-f", "x", "--tokens", "8", "--last", "8"], "--last"),
    (["audit", "-m", WIRED, "-f", "x", "--against", "nobody"], "--against"),
])
def test_wrong_commands_are_usage_errors(arguments, said):
    assert said in volvelle(*arguments, code=2).error


def test_names_of_later_versions_are_not_listed():
    listed = volvelle("--help").out
    assert "fold" in listed and "bench" in listed
    for name in ["serve", "train"]:
        assert f"\n  {name} " not in listed


def test_version():
    assert volvelle("--version").out.startswith("volvelle ")
    assert volvelle("fold", "--version").out == volvelle("--version").out
    assert {"version", "engine"} == volvelle("--version", "--json").json.keys()


@pytest.mark.parametrize("arguments, code", [(["fold", "--json"], 2),
                                             (["ask", "no-such-file", "why", "--json"], 1)])
def test_errors_are_one_json_object_too(arguments, code):
    run = volvelle(*arguments, code=code)
    assert run.error.endswith(json.loads(run.out)["error"]["message"])


def test_spec_on_the_command_line_is_the_spec_that_runs(text, tmp_path):
    folded = fold(text, tmp_path, "-ctk", "f32", "-ctv", "f32", "--json", code=0).json
    assert folded["spec"] == "full+kv(k=f32,v=f32)"
    assert folded["kv_bytes"] == folded["n_tokens"] * 2 * 2 * 2 * 64 * 4


# --- texts -----------------------------------------------------------------------------------


@pytest.mark.parametrize("content, said", [
    (b"", "empty"),
    (b" \n\t\r\n ", "empty"),
    (b"good text\0and more", "byte 9"),
    (b"caf\xe9 au lait", "byte 3"),            # Latin-1
    (b"fine \xed\xa0\x80", "byte 5"),          # a surrogate
    (b"cut \xe2\x82", "byte 4"),               # cut inside a character
    (bytes(range(256)) * 4, "byte 0"),
])
def test_bad_texts_are_refused(tmp_path, content, said):
    path = tmp_path / "bad.txt"
    path.write_bytes(content)
    assert said in fold(path, tmp_path, code=1).error


def test_missing_text_names_both_places(tmp_path):
    message = fold("no-such-text.txt", tmp_path, code=1).error
    assert "no-such-text.txt" in message and str(CACHE) in message


def test_one_token_is_a_text(tmp_path):
    (tmp_path / "one.txt").write_text("f00")
    assert fold(tmp_path / "one.txt", tmp_path, "--json", code=0).json["n_tokens"] == 2
    answer = volvelle("ask", tmp_path / "out.vmem", "k01", "-t", 1, "--json").json
    assert answer["answer"].strip() == "none"


def test_text_beyond_the_context_is_refused_with_both_numbers(tmp_path):
    (tmp_path / "long.txt").write_text(wired_text(200))
    message = fold(tmp_path / "long.txt", tmp_path, "-c", 150, code=1).error
    assert "201" in message and "150" in message


def test_text_beyond_the_models_context_is_refused_before_any_work(tmp_path):
    run = fold("emma.txt", tmp_path, code=1, name=SMOL)
    assert "8192" in run.error and "reading" not in run.err


def test_too_little_room_for_an_answer_is_a_warning(tmp_path):
    (tmp_path / "t.txt").write_text(wired_text(100))
    run = fold(tmp_path / "t.txt", tmp_path, "-c", 120, code=0)
    assert "warning" in run.err and "19 tokens are left" in run.err


def test_question_beyond_the_context(facts):
    message = volvelle("ask", facts[1], "k17 " * 40, "-t", 1, "-c", 30, code=1).error
    assert "30" in message and "question" in message


def test_generation_stops_at_the_limit(facts):
    answer = volvelle("run", "-m", WIRED, "-p", "f00 k01", "-n", -1, "-c", 3, "-t", 1,
                      "--json").json
    assert (answer["stop_reason"], answer["n_predicted"], answer["n_prompt"]) == ("context", 1, 3)


# --- outputs ---------------------------------------------------------------------------------


def test_outputs_that_can_not_be(text, tmp_path):
    base = ["fold", "-m", WIRED, "-f", text, "-t", 1]
    assert "input" in volvelle(*base, "-o", text, code=2).error
    assert text.read_text() == FACTS
    assert "folder" in volvelle(*base, "-o", tmp_path, code=2).error
    assert "does not exist" in volvelle(*base, "-o", tmp_path / "no/where.vmem", code=1).error


def test_full_stdout_is_a_failure(facts):
    with open("/dev/full", "w") as full:
        done = subprocess.run([program(), "inspect", facts[1]], stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 1 and b"stdout" in done.stderr


# --- models ----------------------------------------------------------------------------------


def test_models_that_are_none(text, tmp_path):
    message = fold(text, tmp_path, code=1, name="no-such-model.gguf").error
    assert "no-such-model.gguf" in message and str(CACHE) in message
    fold(text, tmp_path, code=1, name=text)
    whole = model(WIRED).read_bytes()
    for size in [0, 3, 100, len(whole) // 2, len(whole) - 1]:
        cut = tmp_path / "cut.gguf"
        cut.write_bytes(whole[:size])
        fold(text, tmp_path, code=1, name=cut)


# --- memory files ----------------------------------------------------------------------------


def test_memory_of_another_model_is_refused(facts):
    message = volvelle("ask", facts[1], "k17", "-m", SMOL, code=1).error
    assert "fingerprint" in message


def test_files_that_are_no_memory(facts, tmp_path):
    for path in [facts[0], model(WIRED), tmp_path / "absent.vmem"]:
        volvelle("ask", path, "k17", code=1)
    assert "folder" in volvelle("ask", tmp_path, "k17", code=2).error


def test_truncated_memories_are_refused(facts, tmp_path):
    whole = facts[1].read_bytes()
    cut = tmp_path / "cut.vmem"
    for size in [0, 7, 8, 200, len(whole) // 2, len(whole) - 1]:
        cut.write_bytes(whole[:size])
        volvelle("ask", cut, "k17", code=1)
        volvelle("inspect", cut, "--verify", code=3)


def test_every_flipped_bit_is_found(facts, tmp_path):
    """Bits all over the file: header, tokens, text, rows, checks."""
    whole = bytearray(facts[1].read_bytes())
    flipped = tmp_path / "flipped.vmem"
    for i in range(24):
        at = i * (len(whole) - 1) // 23
        damaged = bytearray(whole)
        damaged[at] ^= 1 << (i % 8)
        flipped.write_bytes(damaged)
        volvelle("inspect", flipped, "--verify", code=3)
        if i % 6 == 0:
            volvelle("ask", flipped, "k17", "-t", 1, code=1)
    flipped.write_bytes(whole)
    volvelle("inspect", flipped, "--verify")
