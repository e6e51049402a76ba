"""ARM under user-mode emulation: the right kernels, the bits and the tokens of this machine.

`make test-arm` runs these after the kernels' own suite, which it runs under emulation as a whole.
"""

from __future__ import annotations

import signal

import pytest

from edgedec.kernels import cpu
from tests.other_machines import MAIN

from .conftest import OldMachine

ISAS = ("neoni8mm", "neondot", "scalar")
DIGESTS = "tests/arm/digests.py"
PROMPT = "Why is the sky blue?"
AVAILABLE = "from edgedec.kernels import cpu; print(*cpu.available_isas())"

SDOT = """
import ctypes, mmap
code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
code.write(0x4e829420.to_bytes(4, "little") + 0xd65f03c0.to_bytes(4, "little"))  # sdot; ret
ctypes.CFUNCTYPE(None)(ctypes.addressof(ctypes.c_char.from_buffer(code)))()
print("ran")
"""

pytestmark = pytest.mark.arm


@pytest.fixture(params=["cortex-a72", "neoverse-n1", "max"])
def processor(request, arm):
    return type(arm)(request.param)


@pytest.fixture
def usable(processor):
    """The instruction sets that the processor has, worst first."""
    n_usable = {"cortex-a72": 1, "neoverse-n1": 2, "max": 3}
    return ISAS[-n_usable[processor.cpu] :]


def test_kernels_suit_the_processor(processor, usable):
    assert processor.python("-c", AVAILABLE).out.split() == list(usable)


def test_emulation_tells_processors_apart(processor, usable):
    """Without this a wrong choice of kernels would go unnoticed."""
    done = processor.python("-c", SDOT)
    if "neondot" in usable:
        assert done.out == "ran\n", done.err
    else:
        assert done.exit_code == -signal.SIGILL


def test_best_kernels_run(processor, usable, here):
    """Not one instruction too new, in the kernels or in what every processor runs."""
    found = processor.python(DIGESTS, "kernels").json
    assert found["isa"] == usable[0]
    assert found["digests"] == here.python(DIGESTS, "kernels").json["digests"]


@pytest.mark.parametrize(
    ("cpu", "isa", "usable"),
    [
        ("cortex-a72", "neondot", "scalar"),
        ("cortex-a72", "neoni8mm", "scalar"),
        ("neoverse-n1", "neoni8mm", "neondot, scalar"),
        ("max", "avx2", "neoni8mm, neondot, scalar"),
    ],
)
def test_unusable_kernels_are_refused(cpu, isa, usable, arm, smollm2_bundle):
    done = type(arm)(cpu).edgedec("run", smollm2_bundle, PROMPT, isa=isa)
    assert done.exit_code == 1
    assert done.out == ""
    assert done.err.startswith("error: EDGEDEC_ISA names an instruction set that this machine or")
    assert done.err.endswith(f"usable: {usable}\n")
    assert len(done.err.splitlines()) == 1


def test_instruction_sets_here_agree(here, smollm2_bundle):
    """So that what equals one of them equals all."""
    for what in (["kernels"], ["logits", smollm2_bundle]):
        found = [here.python(DIGESTS, *what, isa=isa).json for isa in cpu.available_isas()]
        assert [one["isa"] for one in found] == list(cpu.available_isas())
        assert all(one["digests"] == found[0]["digests"] for one in found)


@pytest.mark.parametrize("isa", ISAS)
def test_kernels_are_bit_identical_to_those_here(isa, arm, here):
    found = arm.python(DIGESTS, "kernels", isa=isa).json
    assert found == {**here.python(DIGESTS, "kernels").json, "isa": isa}


@pytest.mark.parametrize("isa", ISAS)
def test_logits_are_bit_identical_to_those_here(isa, arm, here, smollm2_bundle):
    found = arm.python(DIGESTS, "logits", smollm2_bundle, isa=isa).json
    assert found == {**here.python(DIGESTS, "logits", smollm2_bundle).json, "isa": isa}


@pytest.mark.parametrize("isa", ISAS)
def test_run_gives_the_tokens_it_gives_here(isa, arm, here, smollm2_bundle):
    arguments = ("run", smollm2_bundle, PROMPT, "--max-new-tokens", 12, "--json")
    expected = here.edgedec(*arguments).json
    found = arm.edgedec(*arguments, isa=isa).json
    assert found["n_new_tokens"] == 12
    assert (found["token_ids"], found["text"]) == (expected["token_ids"], expected["text"])


WITHOUT_KERNELS = "from edgedec.kernels import library; library._NAMES = ('none',)"


def test_a_bundle_for_arm_brings_its_kernels(arm, here, smollm2_gguf, smollm2_bundle, tmp_path):
    """Made here, refused here, and run there by an edgedec that has no kernels of its own."""
    bundle = tmp_path / "b"
    made = here.edgedec("export", smollm2_gguf, "-o", bundle, "--triple", "aarch64-linux-gnu")
    assert made.exit_code == 0, made.err
    assert "aarch64-linux-gnu" in here.edgedec("inspect", bundle).out
    arguments = (PROMPT, "--max-new-tokens", 8, "--json")
    refused = here.edgedec("run", bundle, *arguments)
    assert refused.exit_code == 1
    assert "was compiled for aarch64-linux-gnu, this machine is x86_64" in refused.err
    assert len(refused.err.splitlines()) == 1
    found = arm.python("-c", f"{WITHOUT_KERNELS}; {MAIN}", "run", bundle, *arguments).json
    assert found["token_ids"] == here.edgedec("run", smollm2_bundle, *arguments).json["token_ids"]


def test_run_on_an_old_processor(here, arm, smollm2_bundle):
    """ONNX Runtime, too, has to keep to what the processor has."""
    arguments = ("run", smollm2_bundle, "--raw", "The sky is", "--max-new-tokens", 4, "--json")
    found = type(arm)("cortex-a72").edgedec(*arguments).json
    assert found["token_ids"] == here.edgedec(*arguments).json["token_ids"]


def test_a_processor_without_kernels_of_its_own_says_so_once(here, smollm2_bundle):
    old = OldMachine()
    assert old.python("-c", AVAILABLE).out.split() == ["scalar"]
    arguments = ("run", smollm2_bundle, "--raw", "The sky is", "--max-new-tokens", 2, "--json")
    found = old.edgedec(*arguments)
    assert found.json["token_ids"] == here.edgedec(*arguments).json["token_ids"]
    assert found.err.count("none of the instruction sets") == 1
