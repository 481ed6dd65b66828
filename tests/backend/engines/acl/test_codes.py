"""ACL's numbers become types, errors and sentences."""

import pytest

from acl_simulator.codes import DATA_TYPES as ACL_TYPES
from acl_simulator.codes import Code
from ge_backend.engines.acl.codes import acl_number, acl_type, failure, one_line
from ge_backend.errors import DeviceFault, GraphFailed, OutOfMemory
from ge_backend.tensors import DATA_TYPES


def test_types_agree_with_the_facts():
    """Each number is the type that the facts page says, in both directions."""
    for number, (name, numpy) in ACL_TYPES.items():
        dtype = acl_type(number)
        if name in DATA_TYPES:
            assert (dtype.name, dtype.numpy, acl_number(dtype)) == (name, numpy, number)
        else:
            assert dtype is None  # complex numbers: Triton carries none
    assert {acl_type(number).name for number in ACL_TYPES if acl_type(number)} == (
        DATA_TYPES.keys() - {"BYTES"}
    )


@pytest.mark.parametrize("number", [-1, 5, 13, 16, 29, 33, 99])
def test_types_that_triton_does_not_carry(number):
    """They are known to be unknown."""
    assert acl_type(number) is None


@pytest.mark.parametrize(
    ("codes", "kind"),
    [
        (
            [200000, 207001, 207005, *range(207007, 207013), 207018, 245000, 507032],
            OutOfMemory,
        ),
        (
            [
                207004,
                207020,
                507000,
                507014,
                507015,
                507018,
                507046,
                507054,
                507899,
                545601,
                107020,
            ],
            DeviceFault,
        ),
        ([100000, 107002, 145003, 145013, 200001, 207000, 500002, 545001, 7], GraphFailed),
    ],
    ids=["resources", "device", "rest"],
)
def test_codes_become_our_errors(codes, kind):
    """Scarce resources, a broken device, and everything else."""
    for code in codes:
        assert type(failure("rt.malloc", code, None)) is kind


LACK = "EL0004: Failed to allocate memory requested by GE module."
STACK = "E19999: Inner Error! TraceBack (most recent call last): "
GENERIC = [500000, 500002, 500004, 545000]


@pytest.mark.parametrize("code", GENERIC)
@pytest.mark.parametrize(
    ("cause", "message", "kind"),
    [
        (207001, "", OutOfMemory),
        (507015, "", DeviceFault),
        (207001, f"{STACK}reason=aicore exception", OutOfMemory),
        (0, LACK, OutOfMemory),
        (107000, f"{STACK}Call aclrtMalloc fail, purpose: page caching", OutOfMemory),
        (0, f"{STACK}rtX execution failed, reason=vector core timeout", DeviceFault),
        (0, f"{STACK}rtX execute failed, reason=[aicore exception]", DeviceFault),
        (0, f"{STACK}stream synchronize timeout:1000, ret:507046.", DeviceFault),
        (0, "reason=[the model], not a timeout", GraphFailed),
        (107000, "E19999: a tiling function said no", GraphFailed),
        (0, None, GraphFailed),
    ],
)
def test_what_a_generic_code_hides(code, cause, message, kind):
    """The code of the runtime below it says more; else the whole text does, its stack too."""
    assert type(failure("mdl.execute", code, message, cause)) is kind


def test_a_code_that_says_enough_needs_no_other():
    """Neither an error of before nor the text changes it; a cause that counted is named."""
    assert type(failure("mdl.execute", 145013, LACK, 507015)) is GraphFailed
    assert str(failure("mdl.execute", 500002, "", 507015)) == (
        "acl.mdl.execute failed with 500002 (graph engine failed) after 507015 (AI core exception)"
    )


@pytest.mark.parametrize("code", [code for code in Code if code not in {0, 100002}])
def test_every_code_of_the_facts_has_a_meaning(code):
    """No message says 'unknown error' for a code that is documented."""
    assert "unknown error" not in str(failure("rt.malloc", code, None))


def test_a_message_has_the_call_the_code_and_what_cann_says():
    """In one line, without the stack that CANN appends."""
    said = "EL0004: No memory.\n\tSolution: free some.\n  TraceBack (most recent call last):\n here"
    assert str(failure("rt.malloc", 207001, said)) == (
        "acl.rt.malloc failed with 207001 (out of device memory): "
        "EL0004: No memory. Solution: free some."
    )
    assert str(failure("mdl.unload", 4, "")) == "acl.mdl.unload failed with 4 (unknown error)"


def test_a_long_message_is_cut():
    """An engine may print a whole graph."""
    assert one_line("word " * 1000).endswith(" ...")
    assert len(one_line("x" * 5000)) < 700
