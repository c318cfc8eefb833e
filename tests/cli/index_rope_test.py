"""Codes of an index that were made for other rotary positions: refused by name, whatever else fits."""
import json

import pytest

from conftest import WIRED, volvelle, wired_text
from flags_test import with_metadata

SPEC = "full+topk(k=64)"


@pytest.fixture(scope="module")
def calibration(tmp_path_factory):
    folder = tmp_path_factory.mktemp("calibration")
    (folder / "t.txt").write_text(wired_text(1500))
    volvelle("calibrate", "-m", WIRED, "-f", folder / "t.txt", "--memory", SPEC, "-o", folder / "c.vmem")
    return folder / "c.vmem"


def rope_of(path):
    whole = path.read_bytes()
    return json.loads(whole[8:8 + int.from_bytes(whole[:8], "little")])["__metadata__"]["rope"]


def use(calibration, code=0):
    return volvelle("run", "-m", WIRED, "-p", wired_text(20), "-n", 1, "--memory", SPEC,
                    "--calibration", calibration, code=code)


def test_a_calibration_of_other_rotary_positions_is_refused_by_name(calibration, tmp_path):
    rope = rope_of(calibration)
    other = tmp_path / "c.vmem"
    other.write_bytes(with_metadata(calibration.read_bytes()))
    use(other)  # so the sums are right
    turned = rope[:-1] + ("1" if rope[-1] != "1" else "2")
    other.write_bytes(with_metadata(calibration.read_bytes(), rope=turned))
    error = use(other, code=1).error
    assert "the RoPE configuration differs" in error
    assert turned in error and rope in error  # what it was made for, and what the model has
