"""fold and ask: what was read once is answered without reading it again."""
import os
import shutil
import stat
import subprocess

import numpy as np
import pytest
from safetensors.numpy import load_file

from conftest import FACTS, SMOL, WIRED, model, program, volvelle, wired_text

FOLD_KEYS = {"n_tokens", "chunk", "depth", "kv_bytes", "file_bytes", "seconds",
             "tokens_per_second", "spec", "engine", "model_fingerprint"}
ASK_KEYS = {"answer", "n_prompt", "n_cached", "n_predicted", "spec", "stop_reason", "timings"}
TIMINGS = {"load_ms", "restore_ms", "prompt_ms", "first_token_ms", "predicted_ms"}


def ask(memory, question, *flags):
    return volvelle("ask", memory, question, "-t", 1, "--json", *flags).json


@pytest.mark.parametrize("key, value", [("k17", "v42"), ("k05", "v11"), ("k40", "v63"),
                                        ("k33", "none")])  # k33 is not in the text
def test_facts_are_found_in_the_saved_memory(facts, key, value):
    answer = ask(facts[1], key)
    assert answer["answer"].strip() == value
    assert answer["stop_reason"] == "end"
    assert answer["n_predicted"] == 1


def test_json_keys_and_counts(facts):
    text, memory, folded = facts
    assert FOLD_KEYS <= folded.keys()
    assert folded["n_tokens"] == 1 + len(FACTS.split())  # the beginning-of-text token
    assert (folded["chunk"], folded["depth"], folded["spec"]) == (256, 1, "full")
    # 2 layers x (K and V) x 2 KV heads x 64 x 2 bytes a token
    assert folded["kv_bytes"] == folded["n_tokens"] * 2 * 2 * 2 * 64 * 2
    assert folded["file_bytes"] == memory.stat().st_size
    answer = ask(memory, "k17")
    assert ASK_KEYS <= answer.keys() and TIMINGS <= answer["timings"].keys()
    assert answer["n_cached"] == folded["n_tokens"]
    assert answer["n_prompt"] == 3  # two line feeds and the key
    timings = answer["timings"]
    assert timings["first_token_ms"] >= timings["load_ms"] + timings["prompt_ms"]


def test_memory_file_is_private(facts):
    assert stat.S_IMODE(facts[1].stat().st_mode) == 0o600


def test_question_is_not_read_into_the_file(facts):
    before = facts[1].read_bytes()
    ask(facts[1], "k17")
    assert facts[1].read_bytes() == before


def test_recall_over_many_chunks(tmp_path):
    text = wired_text(2000)
    words = text.split()
    (tmp_path / "long.txt").write_text(text)
    memory = tmp_path / "long.vmem"
    folded = volvelle("fold", "-m", WIRED, "-f", tmp_path / "long.txt", "-o", memory, "-t", 1,
                      "--chunk", 128, "--json").json
    assert folded["depth"] == 16
    facts_in_text = [(words[i], words[i + 1]) for i in range(len(words) - 1) if words[i][0] == "k"]
    assert len(facts_in_text) >= 10
    for key, value in facts_in_text[::3]:
        assert ask(memory, key)["answer"].strip() == value


def test_window_drops_what_it_says(tmp_path):
    text = "f00 k17 v42 " + " ".join(["f01"] * 600) + " k05 v11 f02"
    (tmp_path / "t.txt").write_text(text)
    memory = tmp_path / "t.vmem"
    spec = "sink(1)+window(128)"
    folded = volvelle("fold", "-m", WIRED, "-f", tmp_path / "t.txt", "-o", memory, "-t", 1,
                      "--memory", spec, "--json").json
    assert folded["spec"] == spec
    # One sink, at most 128 + 63 rows in whole blocks and one spare block, of 1024 bytes each.
    kept = volvelle("inspect", memory, "--json").json
    assert folded["kv_bytes"] == kept["kv_bytes"] == kept["n_rows"] * 1024
    assert 128 < kept["n_rows"] <= 1 + 128 + 63 + 64
    assert ask(memory, "k05")["answer"].strip() == "v11"
    assert ask(memory, "k17")["answer"].strip() == "none"


def test_answer_without_json_is_the_plain_text(facts):
    run = volvelle("ask", facts[1], "k17", "-t", 1)
    assert run.out.strip() == "v42"
    assert "'full'" in run.err  # every run prints its effective spec


def test_model_is_found_by_path_then_fingerprint(tmp_path):
    copy = tmp_path / "copy.gguf"
    shutil.copy(model(WIRED), copy)
    (tmp_path / "t.txt").write_text(FACTS)
    memory = tmp_path / "t.vmem"
    volvelle("fold", "-m", copy, "-f", tmp_path / "t.txt", "-o", memory, "-t", 1)
    copy.unlink()
    assert ask(memory, "k17")["answer"].strip() == "v42"  # the same model in the cache folder
    empty = tmp_path / "cache"
    empty.mkdir()
    failed = volvelle("ask", memory, "k17", "-t", 1, code=1, env={"VOLVELLE_CACHE": str(empty)})
    for part in ["-m", str(copy), str(empty)]:
        assert part in failed.error


def test_two_folds_to_one_file(tmp_path):
    """Whichever wins, the file is one of the two and whole."""
    memory = tmp_path / "m.vmem"
    texts = [wired_text(600, seed) for seed in (1, 2)]
    folds = []
    for i, text in enumerate(texts):
        (tmp_path / f"{i}.txt").write_text(text)
        folds.append(subprocess.Popen([program(), "fold", "-m", WIRED, "-f", tmp_path / f"{i}.txt",
                                       "-o", memory, "-t", "1"], stderr=subprocess.DEVNULL,
                                      stdout=subprocess.DEVNULL))
    assert [fold.wait(60) for fold in folds] == [0, 0]
    volvelle("inspect", memory, "--verify")
    assert bytes(load_file(memory)["text"]).decode() in texts
    assert sorted(os.listdir(tmp_path)) == ["0.txt", "1.txt", "m.vmem"]


@pytest.mark.parametrize("name, layers", [(WIRED, [0, 1]), (SMOL, [0, 29])])
def test_stored_rows_are_the_captured_ones(tmp_path, name, layers):
    """K and V in the file are the f16 rounding of the f32 rows that a run produces."""
    words = FACTS if name == WIRED else "The quick brown fox jumps over the lazy dog. " * 12
    (tmp_path / "t.txt").write_text(words.strip())
    common = ["-m", name, "-f", tmp_path / "t.txt", "-t", 1, "-ub", 32]
    memory, capture = tmp_path / "t.vmem", tmp_path / "t.safetensors"
    volvelle("fold", *common, "-o", memory, "--format", "raw", "--chunk", 32)
    volvelle("capture", *common, "-o", capture)
    stored, captured = load_file(memory), load_file(capture)
    np.testing.assert_array_equal(stored["tokens"], captured["tokens"])
    for layer in layers:
        for letter in "kv":
            rows = captured[f"layer.{layer}.{letter}"]
            assert np.abs(rows).max() > 0
            np.testing.assert_array_equal(stored[f"layer.{layer}.{letter}"],
                                          rows.astype(np.float16))


# --- SmolLM2 ---------------------------------------------------------------------------------


def test_story_is_folded_as_a_conversation(story):
    text, memory, folded = story
    stored = load_file(memory)
    assert folded["format"] == "chat"
    assert stored["tokens"].shape == (folded["n_tokens"],)
    # Template tokens have no place in the text; the others cover it from end to end.
    ranges = stored["ranges"]
    of_text = ranges[ranges[:, 0] >= 0]
    assert len(of_text) < len(ranges)
    assert of_text[0, 0] == 0 and of_text[-1, 1] == len(text.read_bytes().rstrip())
    assert (of_text[1:, 0] == of_text[:-1, 1]).all()
    assert bytes(stored["text"]) == text.read_bytes()


def fold_raw(text, memory):
    return volvelle("fold", "-m", SMOL, "-f", text, "-o", memory, "--format", "raw", "-t", 1,
                    "--json").json


def test_ask_reads_only_the_question(story):
    answer = ask(story[1], "Who wants to marry off five daughters?", "-n", 16)
    assert answer["n_cached"] >= story[2]["n_tokens"] - 2  # the last token may merge with what follows
    assert answer["n_prompt"] < 30
    assert answer["answer"].strip()


def test_conversation_has_the_tokens_of_one_rendering(story, tmp_path):
    """Opening + (text, separator, question) + closing, tokenized as one text, is what is asked."""
    text, memory, folded = story
    question = "Who is Bingley?"
    answer = ask(memory, question, "-n", 1)
    (tmp_path / "all.txt").write_text(text.read_text().rstrip() + "\n\n" + question)
    whole = tmp_path / "all.vmem"
    raw = fold_raw(tmp_path / "all.txt", whole)
    (tmp_path / "word.txt").write_text("assistant")
    word = fold_raw(tmp_path / "word.txt", tmp_path / "word.vmem")
    begin = int((load_file(memory)["ranges"][:, 0] < 0).sum())
    closing = 4 + word["n_tokens"]  # <|im_end|> \n <|im_start|> ... \n
    assert answer["n_cached"] + answer["n_prompt"] == begin + raw["n_tokens"] + closing
    stored, middle = load_file(memory)["tokens"], load_file(whole)["tokens"]
    shared = answer["n_cached"]
    np.testing.assert_array_equal(stored[begin:shared], middle[:shared - begin])


def test_saved_and_loaded_equals_one_run(story, tmp_path):
    """Greedy text after fold, save, load and ask is that of one run over the same tokens."""
    text, question = story[0].read_text().rstrip(), "The next day, Mrs. Bennet"
    (tmp_path / "t.txt").write_text(text)
    memory = tmp_path / "t.vmem"
    volvelle("fold", "-m", SMOL, "-f", tmp_path / "t.txt", "-o", memory, "--format", "raw",
             "--chunk", 64, "--deterministic", "-t", 1)
    asked = ask(memory, question, "-n", 24, "--deterministic")
    ran = volvelle("run", "-m", SMOL, "-p", f"{text}\n\n{question}", "-n", 24, "--deterministic",
                   "-t", 1, "--json").json
    assert asked["answer"] == ran["text"]
    assert asked["n_cached"] + asked["n_prompt"] == ran["n_prompt"]


def test_sampling_follows_the_seed(story):
    def sampled(seed):
        return ask(story[1], "Tell me more.", "-n", 12, "--temp", 1.5, "-s", seed)["answer"]
    first = sampled(1)
    assert sampled(1) == first
    assert any(sampled(seed) != first for seed in (2, 3))
