"""Evidence: which passages an answer attended to, from `ask --evidence` and `/evidence` of a chat."""
import json
import os
import subprocess

import pytest
from conftest import SMOL, WIRED, program, volvelle

TEXT = " ".join(f"f{i % 32:02d}" for i in range(300)) + " k17 v42 " + " ".join(
    f"f{i * 7 % 32:02d}" for i in range(300))


@pytest.fixture(scope="module")
def wired_memory(tmp_path_factory):
    folder = tmp_path_factory.mktemp("evidence")
    (folder / "facts.txt").write_text(TEXT)
    volvelle("fold", "-m", WIRED, "-f", folder / "facts.txt", "-o", folder / "m.vmem")
    return folder / "m.vmem"


def test_the_passage_with_the_fact_comes_first(wired_memory):
    found = volvelle("ask", wired_memory, "k17", "-n", 1, "--evidence", "--json").json
    assert found["answer"].strip() == "v42"
    first = found["evidence"][0]
    assert "k17 v42" in first["text"] and first["weight"] > 0.9
    # Offsets are bytes of the text that was folded.
    assert TEXT.encode()[first["start"]:first["end"]].decode() == first["text"]
    assert len(found["evidence"]) <= 3
    assert found["evidence"] == sorted(found["evidence"], key=lambda p: -p["weight"])


def test_how_many_and_none(wired_memory):
    assert len(volvelle("ask", wired_memory, "k17", "-n", 1, "--evidence", 1, "--json")
               .json["evidence"]) == 1
    assert "evidence" not in volvelle("ask", wired_memory, "k17", "-n", 1, "--json").json
    for absurd in [0, -1, 100000, "many"]:
        volvelle("ask", wired_memory, "k17", "-n", 1, "--evidence", absurd, code=2)


def test_text_is_marked_and_without_colour_in_a_pipe(wired_memory):
    out = volvelle("ask", wired_memory, "k17", "-n", 1, "--evidence", 1).out
    assert "[[" in out and "k17 v42" in out and "\x1b" not in out and "%" in out


def test_answers_do_not_depend_on_being_watched(wired_memory):
    plain = volvelle("ask", wired_memory, "k17", "-n", 4, "--json").json["answer"]
    assert volvelle("ask", wired_memory, "k17", "-n", 4, "--evidence", "--json").json["answer"] == plain


def test_chat_shows_what_the_last_turn_attended_to():
    lines = ["The key to the chapel hangs behind the beehives in the garden.", "/evidence",
             "Where does the key to the chapel hang?", "/evidence", "/exit"]
    done = subprocess.run([program(), "chat", "-m", SMOL, "-n", "12", "--json"],
                          input="\n".join(lines) + "\n", capture_output=True, text=True, timeout=300,
                          env={**os.environ})
    objects = [json.loads(line) for line in done.stdout.splitlines()]
    assert "nothing was said before" in objects[1]["error"]["message"]
    evidence = objects[3]["evidence"]
    assert "chapel" in evidence[0]["text"] or "beehives" in evidence[0]["text"]
