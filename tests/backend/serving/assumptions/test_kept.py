"""What is found out is kept, and found at a second start."""

from dataclasses import replace

from ge_backend.serving.assumptions.findings import FINDINGS, Findings
from ge_backend.serving.assumptions.kept import VERDICT, keep, kept, remembered
from ge_backend.serving.assumptions.lengths import Lengths
from ge_backend.serving.warmup.store import Store
from ge_backend.serving.warmup.verdict import HOLDS, Verdict
from ge_backend.tensors import Signature, TensorSpec, data_type

FOUND = Verdict(assumption="rows", tested="two rows", figure="0.1", verdict=HOLDS)


def test_what_is_kept_is_not_found_out_again(tmp_path):
    """Whatever it is: the same value comes back."""
    store = Store(tmp_path)
    asked = []
    for _ in range(2):
        assert remembered(store, ["a"], VERDICT, lambda: asked.append(1) or FOUND) == FOUND
    assert asked == [1]
    assert kept(store, ["b"], VERDICT) is None


def test_findings_come_back_with_their_lengths_or_without(tmp_path):
    """Axes and their bounds among them."""
    spec = TensorSpec(name="x", dtype=data_type("FP32"), dims=(-1, 3), axes=("n", ""))
    signature = Signature(inputs=(spec,), outputs=(), axis_limits={"n": 8}, axis_least={"n": 2})
    lengths = Lengths(inputs=(spec,), batch="n", sums={"t": ("a", "b")}, limits={"n": 8})
    bare = Findings(signature=signature, bounds={"x": 4}, verdicts=(FOUND,))
    store = Store(tmp_path)
    for at, findings in enumerate((bare, replace(bare, lengths=lengths))):
        keep(store, [str(at)], FINDINGS, findings)
        assert kept(store, [str(at)], FINDINGS) == findings


def test_what_cannot_be_read_is_found_out_again(tmp_path, caplog):
    """As of another release, or a damaged file."""
    store = Store(tmp_path)
    for document in ({"type": "Verdict"}, [1], "text", {"type": "Other"}):
        store.keep_findings(["a"], document)
        assert remembered(store, ["a"], VERDICT, lambda: FOUND) == FOUND
        assert "findings of an earlier start are not used" in caplog.messages[-1]
