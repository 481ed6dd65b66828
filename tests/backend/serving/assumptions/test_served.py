"""What is served of a graph follows from how it runs, whatever its file calls its tensors."""

import itertools
import math

import numpy as np
import pytest
from onnx import TensorProto, helper

from builders.graphs import TABLE, WIDTH, graph
from builders.opened_graph import opened_graph
from ge_backend.errors import ConfigError
from ge_backend.serving.assumptions import served as served_module
from ge_backend.serving.assumptions import trial as trial_module
from ge_backend.serving.assumptions.completion import whole_document
from ge_backend.serving.assumptions.served import check_declared, served
from ge_backend.serving.assumptions.trial import OutOfTime, Trial
from ge_backend.serving.warmup.store import Store
from ge_backend.serving.warmup.verdict import FAILS, HOLDS, LATE, NOT_TESTED, TAKEN

pytest.importorskip("onnxruntime")

NODE = helper.make_node
IDS, REAL, FLAG = TensorProto.INT64, TensorProto.FLOAT, TensorProto.BOOL
COUNT = itertools.count()


@pytest.fixture
def look(tmp_path):
    """A function that completes a configuration from a graph: the document, and how it is served."""

    def look_(model, *, engine="", pbtxt="", store=None, check=False, **document):
        folder = tmp_path / str(next(COUNT))
        folder.mkdir()
        with opened_graph(folder, model, engine=engine, pbtxt=pbtxt, **document) as (session, read):
            store = store or Store(folder / "cache")
            whole = whole_document({"name": "m", **document}, read(), session, store)
            config = read(**whole)
            judged = served(config, session, store)
            if check:
                check_declared(config, judged)
            return whole, judged

    return look_


def verdicts(judged):
    """Return the verdicts by their assumptions."""
    return {verdict.assumption: verdict.verdict for verdict in judged.verdicts}


def marked(whole):
    """Return the inputs that are padded."""
    return {block["name"] for block in whole["input"] if block.get("allow_ragged_batch")}


def pooled(names, *, mask_first="attention_mask"):
    """Take input_ids, a mask -> y: the sum of the table's rows that the mask leaves."""
    a, b, c, d = names
    return graph(
        [
            NODE("Gather", ["table", "input_ids"], ["rows"]),
            NODE("Cast", [mask_first], ["m"], to=REAL),
            NODE("Unsqueeze", ["m", "two"], ["m3"]),
            NODE("Mul", ["rows", "m3"], ["kept"]),
            NODE("ReduceSum", ["kept", "one"], ["y"], keepdims=0),
        ],
        [("input_ids", IDS, [a, b]), (mask_first, IDS, [c, d])],
        [("y", REAL, [a, WIDTH])],
        [("table", TABLE), ("one", np.array([1])), ("two", np.array([2]))],
    )


@pytest.mark.parametrize(
    "names",
    [
        ["unk__500", "unk__501", "unk__502", "unk__503"],
        ["input_ids_dynamic_axes_1", "input_ids_dynamic_axes_2", "mask_axes_1", "mask_axes_2"],
        ["?", "?", "?", "?"],
        [None] * 4,
        ["batch", "sequence", "batch", "sequence"],
    ],
    ids=["tf2onnx", "torch's list", "paddle2onnx", "none", "one name"],
)
@pytest.mark.parametrize("engine", ["", "openvino"])
def test_lengths_that_are_one_are_one_by_whatever_names(look, names, engine):
    """Ids and their mask are padded together; their rows are batched."""
    if engine:
        pytest.importorskip(engine)
    whole, judged = look(pooled(names), engine=engine)
    assert whole["max_batch_size"] == 32
    assert marked(whole) == {"input_ids", "attention_mask"}
    assert len(judged.layout.axes) == 1
    assert verdicts(judged)["rows"] == verdicts(judged)["padding"] == HOLDS


def joined(total):
    """Take input_ids, a mask over what came before and them, past -> all of it, masked."""
    return graph(
        [
            NODE("Gather", ["table", "input_ids"], ["rows"]),
            NODE("Concat", ["past", "rows"], ["all"], axis=1),
            NODE("Cast", ["attention_mask"], ["m"], to=REAL),
            NODE("Unsqueeze", ["m", "two"], ["m3"]),
            NODE("Mul", ["all", "m3"], ["y"]),
        ],
        [
            ("input_ids", IDS, ["batch", "sequence"]),
            ("attention_mask", IDS, ["batch", total]),
            ("past", REAL, ["batch", "past_sequence", WIDTH]),
        ],
        [("y", REAL, ["batch", total, WIDTH])],
        [("table", TABLE), ("two", np.array([2]))],
    )


@pytest.mark.parametrize("total", ["past_sequence + sequence", "total_sequence", "?"])
def test_a_mask_over_more_than_is_sent_beside_it_has_to_be_sent(look, total):
    """Its length is a sum: nothing is padded, no length is refused, rows of equal ones batch."""
    whole, judged = look(joined(total))
    assert marked(whole) == set()
    assert not any(block["optional"] for block in whole["input"])
    assert (judged.layout.axes, len(judged.layout.equal_axes)) == ((), 3)
    assert judged.layout.limits == {}
    assert verdicts(judged)["rows"] == HOLDS


def three():
    """Take three lengths and a mask over all of them -> the masked sum."""
    parts = ("image", "prefix", "text")
    return graph(
        [
            NODE("Concat", [*parts], ["all"], axis=1),
            NODE("Mul", ["all", "mask"], ["y"]),
        ],
        [*((name, REAL, ["batch", name]) for name in parts), ("mask", REAL, ["batch", "total"])],
        [("y", REAL, ["batch", "total"])],
    )


def test_a_length_may_be_the_sum_of_three(look):
    """The graph runs, so its rows are tested."""
    _, judged = look(three())
    assert verdicts(judged) == {"axes": HOLDS, "outputs": HOLDS, "rows": HOLDS}


def translator():
    """Take two lengths under one name -> one of them, as sequence-to-sequence exports have it."""
    return graph(
        [
            NODE("Gather", ["table", "input_ids"], ["e"]),
            NODE("Cast", ["attention_mask"], ["m"], to=REAL),
            NODE("Unsqueeze", ["m", "two"], ["m3"]),
            NODE("Mul", ["e", "m3"], ["em"]),
            NODE("ReduceSum", ["em", "one"], ["context"], keepdims=1),
            NODE("Gather", ["table", "decoder_input_ids"], ["d"]),
            NODE("Add", ["d", "context"], ["logits"]),
        ],
        [
            (name, IDS, ["batch", "sequence"])
            for name in ("input_ids", "attention_mask", "decoder_input_ids")
        ],
        [("logits", REAL, ["batch", "sequence", WIDTH])],
        [("table", TABLE), ("one", np.array([1])), ("two", np.array([2]))],
    )


def test_one_name_for_two_lengths_is_told_apart(look):
    """What the encoder takes is padded; the output follows what the decoder takes."""
    whole, judged = look(translator())
    assert marked(whole) == {"input_ids", "attention_mask"}
    assert judged.layout.axes == ("sequence",)
    assert judged.layout.outputs[0].names[0] == "decoder_input_ids.1"
    assert verdicts(judged)["axes"] == FAILS


def strided():
    """Take samples and their mask -> frames, a fourth of them, under one name."""
    return graph(
        [
            NODE("Cast", ["attention_mask"], ["m"], to=REAL),
            NODE("Mul", ["input_values", "m"], ["x"]),
            NODE("Unsqueeze", ["x", "one"], ["x3"]),
            NODE("Conv", ["x3", "w"], ["logits"], strides=[4]),
        ],
        [
            ("input_values", REAL, ["batch", "sequence"]),
            ("attention_mask", IDS, ["batch", "sequence"]),
        ],
        [("logits", REAL, ["batch", 5, "sequence"])],
        [("one", np.array([1])), ("w", np.ones((5, 1, 8), np.float32))],
    )


def test_an_output_of_another_length_than_its_name_says_is_not_cut(look):
    """So its inputs are not padded; requests of equal lengths are batched."""
    whole, judged = look(strided())
    assert (judged.layout.axes, judged.layout.equal_axes) == ((), ("sequence",))
    assert judged.layout.outputs[0].row_shape((400,)) == (5, -1)
    assert marked(whole) == set()


def one(node, dims=("n", 3), out=("n", 3), *, constants=(), kind=REAL, **attributes):
    """Take x -> y, by one operator."""
    inputs = ["x", *(name for name, _ in constants)]
    return graph(
        [NODE(node, inputs, ["y"], **attributes)],
        [("x", kind, [*dims])],
        [("y", REAL, [*out])],
        constants,
    )


@pytest.mark.parametrize(
    ("dims", "out"),
    [
        (("unk__1", 4), ("unk__2", 4)),
        ((None, 4), (None, 4)),
        (("N", 4), (1, 4)),
        (("N", "?", "?"), ("N", "?", "?")),
    ],
)
def test_independent_rows_are_batched_by_whatever_names(look, dims, out):
    """Each tensor's own name for the batch, none, or the sample's size."""
    whole, judged = look(one("Relu", dims, out))
    assert whole["max_batch_size"] == 32
    assert verdicts(judged)["rows"] == HOLDS


SETS = {
    "softmax over the batch": one("Softmax", axis=0),
    "less the mean": graph(
        [NODE("ReduceMean", ["x"], ["m"], axes=[0]), NODE("Sub", ["x", "m"], ["y"])],
        [("x", REAL, ["n", 3])],
        [("y", REAL, ["n", 3])],
    ),
    "running sum": one("CumSum", constants=[("zero", np.array(0))]),
    "bags of ids, and where each ends": graph(
        [
            NODE("Gather", ["table", "ids"], ["rows"]),
            NODE("CumSum", ["rows", "zero"], ["sums"]),
            NODE("Gather", ["sums", "ends"], ["y"]),
        ],
        [("ids", IDS, ["total"]), ("ends", IDS, ["n"])],
        [("y", REAL, ["n", WIDTH])],
        [("table", TABLE), ("zero", np.array(0))],
    ),
}


@pytest.mark.parametrize("engine", ["", "openvino"])
@pytest.mark.parametrize("name", SETS)
def test_rows_that_belong_together_are_not_batched(look, name, engine):
    """Where nothing is said of batching there is none; else each request runs by itself.

    OpenVINO takes indices that point beyond what there is, and answers zeros.
    """
    if engine:
        pytest.importorskip(engine)
    whole, judged = look(SETS[name], engine=engine)
    assert (whole["max_batch_size"], judged.layout.alone) == (0, False)
    assert "dynamic_batching" not in whole
    (why,) = [v for v in judged.verdicts if v.assumption == "rows"]
    assert (why.verdict, "completed to max_batch_size: 0" in why.consequence) == (FAILS, True)
    whole, judged = look(SETS[name], engine=engine, max_batch_size=8)
    assert (whole["max_batch_size"], judged.layout.alone) == (8, True)
    assert verdicts(judged)["rows"] == FAILS


def test_what_is_assumed_is_not_tested(look):
    """The parameter `assume` names it; the rest is tested as ever."""
    assume = {"assume": {"string_value": "rows"}}
    whole, judged = look(SETS["softmax over the batch"], parameters=assume)
    assert (whole["max_batch_size"], judged.layout.alone) == (32, False)
    assert verdicts(judged) == {"axes": HOLDS, "outputs": HOLDS, "rows": TAKEN}


MASKED = {
    "added": (REAL, [NODE("Identity", ["attention_mask"], ["bias"])], -10000.0, 0.0),
    "multiplied": (
        REAL,
        [NODE("Sub", ["attention_mask", "1"], ["off"]), NODE("Mul", ["off", "1e9"], ["bias"])],
        0.0,
        1.0,
    ),
    "true is something": (
        FLAG,
        [NODE("Where", ["attention_mask", "0", "-1e9"], ["bias"])],
        0.0,
        1.0,
    ),
    "true is to be ignored": (
        FLAG,
        [NODE("Where", ["attention_mask", "-1e9", "0"], ["bias"])],
        1.0,
        0.0,
    ),
}
RANKS = {
    2: ["batch", "sequence"],
    3: ["batch", "sequence", "sequence"],
    4: ["batch", 1, "sequence", "sequence"],
    5: ["batch", 1, 1, "sequence"],
}


def attending(kind, meaning, dims):
    """Take input_ids, attention_mask -> hidden: attention whose scores the mask changes."""
    rank = len(dims)
    shaped = {2: ("Unsqueeze", [1]), 4: ("Squeeze", [1])}
    last = NODE(shaped[rank][0], ["bias", "at"], ["b3"]) if rank in shaped else None
    return graph(
        [
            NODE("Gather", ["table", "input_ids"], ["e"]),
            NODE("Transpose", ["e"], ["et"], perm=[0, 2, 1]),
            NODE("MatMul", ["e", "et"], ["scores"]),
            *meaning,
            last or NODE("Identity", ["bias"], ["b3"]),
            NODE("Add", ["scores", "b3"], ["biased"]),
            NODE("Softmax", ["biased"], ["p"], axis=-1),
            NODE("MatMul", ["p", "e"], ["hidden"]),
        ],
        [("input_ids", IDS, ["batch", "sequence"]), ("attention_mask", kind, dims)],
        [("hidden", REAL, ["batch", "sequence", WIDTH])],
        [
            ("table", TABLE),
            ("at", np.array([1])),
            *((text, np.array(float(text), np.float32)) for text in ("0", "1", "1e9", "-1e9")),
        ],
    )


@pytest.mark.parametrize("rank", RANKS)
@pytest.mark.parametrize("name", MASKED)
def test_a_mask_is_padded_with_what_stands_for_nothing(look, name, rank):
    """What that is, is found; a name does not say it."""
    kind, meaning, fill, real = MASKED[name]
    whole, judged = look(attending(kind, meaning, RANKS[rank]))
    mask = next(item for item in judged.layout.inputs if item.name == "attention_mask")
    assert marked(whole) == {"input_ids", "attention_mask"}
    assert (mask.fill, mask.real) == (fill, real)


def longest():
    """Take frames, a mask that nothing reads -> their largest over time."""
    return graph(
        [
            NODE("ReduceMax", ["frames"], ["m"], axes=[1], keepdims=0),
            NODE("Cast", ["attention_mask"], ["f"], to=REAL),
            NODE("ReduceSum", ["f", "one"], ["s"], keepdims=1),
            NODE("Mul", ["s", "zero"], ["z"]),
            NODE("Sub", ["z", "m"], ["y"]),
        ],
        [("frames", REAL, ["batch", "time", 3]), ("attention_mask", IDS, ["batch", "time"])],
        [("y", REAL, ["batch", 3])],
        [("one", np.array([1])), ("zero", np.zeros(1, np.float32))],
    )


def test_padding_that_changes_answers_is_left_out(look, caplog):
    """The log says by how much, and what overrides it; rows of equal lengths are batched."""
    whole, judged = look(longest())
    assert (whole["max_batch_size"], marked(whole)) == (32, set())
    assert judged.layout.axes == ()
    assert verdicts(judged)["padding"] == FAILS
    (line,) = [text for text in caplog.messages if "assumption 'padding'" in text]
    assert "differs by" in line
    assert "assume: padding" in line


DECLARED = {
    "max_batch_size": 8,
    "input": [
        {"name": name, "data_type": kind, "dims": dims, "allow_ragged_batch": True}
        for name, kind, dims in (
            ("frames", "TYPE_FP32", [-1, 3]),
            ("attention_mask", "TYPE_INT64", [-1]),
        )
    ],
    "output": [{"name": "y", "data_type": "TYPE_FP32", "dims": [3]}],
}


def test_padding_that_config_pbtxt_declares_harmless_and_is_not_is_refused(look):
    """With the difference, and what to change; unless it is to be assumed."""
    said = "input [ { allow_ragged_batch: true } ]"
    with pytest.raises(ConfigError, match=r"differs by .* remove it, .* 'assume: padding'"):
        look(longest(), pbtxt=said, check=True, **DECLARED)
    parameters = {"assume": {"string_value": "padding"}}
    _, judged = look(longest(), pbtxt=said, check=True, parameters=parameters, **DECLARED)
    assert judged.layout.axes == ("time",)


def test_sizes_of_the_sample_in_an_output_are_what_it_returns(look):
    """A label of one dimension too few, tags as long as the sample, one row for many."""
    label = graph(
        [NODE("ReduceSum", ["x", "one"], ["y"], keepdims=0)],
        [("x", REAL, ["N", 4])],
        [("y", REAL, [1])],
        [("one", np.array([1]))],
    )
    whole, judged = look(label)
    assert whole["output"][0]["dims"] == [1]
    assert judged.layout.outputs[0].shape((3,), ()) == (3,)
    tags = graph(
        [NODE("Gather", ["table", "ids"], ["y"])],
        [("ids", IDS, ["batch", "sequence"])],
        [("y", REAL, ["batch", 12, WIDTH])],
        [("table", TABLE)],
    )
    whole, judged = look(tags)
    assert whole["output"][0]["dims"] == [-1, WIDTH]
    assert judged.layout.outputs[0].shape((2,), (5,)) == (2, 5, WIDTH)


def test_a_size_that_small_inputs_do_not_change_is_not_fixed(look):
    """A stride of 32 makes one place of 5 as of 7; the file tells of one dimension too few."""
    pooled = graph(
        [
            NODE("MaxPool", ["x"], ["p"], kernel_shape=[32], strides=[32], ceil_mode=1),
            NODE("Transpose", ["p"], ["y"], perm=[2, 0, 1]),
        ],
        [("x", REAL, [1, 3, "width"])],
        [("y", REAL, [1, "places"])],
    )
    whole, judged = look(pooled)
    assert whole["output"][0]["dims"] == [-1, 1, 3]
    assert judged.layout.outputs[0].row_shape((96,)) == (-1, 1, 3)


def test_an_output_that_begins_with_more_than_the_rows_is_not_batched(look):
    """Beams of a row beside those of others: which are whose the host does not know."""
    beams = one("Tile", ("n", 3), ("n", 3), constants=[("twice", np.array([2, 1]))])
    whole, _ = look(beams)
    assert whole["max_batch_size"] == 0


def test_a_graph_of_even_lengths_only(look):
    """Sizes are tried until some run."""
    even = graph(
        [
            NODE("Reshape", ["x", "pairs"], ["p"]),
            NODE("ReduceMax", ["p"], ["y"], axes=[2], keepdims=0),
        ],
        [("x", REAL, ["batch", "length"])],
        [("y", REAL, ["batch", "half"])],
        [("pairs", np.array([0, -1, 2]))],
    )
    _, judged = look(even)
    assert verdicts(judged) == {"axes": HOLDS, "outputs": HOLDS, "rows": HOLDS}


def test_a_graph_that_takes_no_made_up_input_is_served_as_its_file_says(look, monkeypatch):
    """The table says why nothing was tested; no values are made that are too many to be run."""
    made, values = [], Trial.values
    monkeypatch.setattr(Trial, "values", lambda self, s, *m: made.append(s) or values(self, s, *m))
    picky = one("Gather", ("n", "m"), ("n", 1), constants=[("at", np.array([10**6]))], axis=1)
    whole, judged = look(picky)
    assert max(sum(math.prod(shape) for shape in shapes.values()) for shapes in made) < 2**22
    assert whole["max_batch_size"] == 32
    assert set(verdicts(judged).values()) == {NOT_TESTED}
    assert "takes no made-up input" in judged.verdicts[0].cells[1]


def test_a_batch_that_a_file_names_and_its_graph_has_as_one(look, monkeypatch):
    """Sizes are found with it as 1, before ids are so many that the graph takes all memory."""
    made, values = [], Trial.values
    monkeypatch.setattr(Trial, "values", lambda self, s, *m: made.append(s) or values(self, s, *m))
    names = [("batch", "seq"), ("batch", "seq", WIDTH)]
    nodes = [
        NODE("Gather", ["table", "ids"], ["rows"]),
        NODE("Squeeze", ["rows", "first"], ["only"]),
        NODE("Unsqueeze", ["only", "first"], ["y"]),
    ]
    given, returned = [("ids", IDS, list(names[0]))], [("y", REAL, list(names[1]))]
    alone = graph(nodes, given, returned, [("table", TABLE), ("first", np.array([0]))])
    whole, judged = look(alone)
    assert max(math.prod(shape) for shapes in made for shape in shapes.values()) <= 2**13
    assert verdicts(judged) == {"axes": HOLDS, "outputs": HOLDS}
    assert (whole["max_batch_size"], judged.layout.typical_sizes["batch"]) == (0, 1)


@pytest.mark.parametrize("late", ["axes", "rows", "padding"])
def test_what_there_was_no_time_to_test_is_relied_on_where_asked_for(
    look, monkeypatch, caplog, tmp_path, late
):
    """Else not: a slow graph, or a busy machine, is no reason to. The next start has it."""

    def out_of_time(*_):
        raise OutOfTime

    store, model = Store(tmp_path / "kept"), pooled("abab")
    with monkeypatch.context() as slow:
        if late == "axes":
            slow.setattr(trial_module, "BUDGET_S", -1)
        else:
            slow.setattr(served_module, f"{late}_verdict", out_of_time)
        whole, judged = look(model, store=store)
        asked, batched = look(model, store=store, max_batch_size=8)
    assert whole["max_batch_size"] == (32 if late == "padding" else 0)
    assert (marked(whole), judged.layout.axes) == (set(), ())
    assert verdicts(judged)[late] == LATE
    told = {"axes": {"rows", "padding"}}.get(late, {late})
    assert all(f"assumption {name!r} not tested in time" in caplog.text for name in told)
    assert (asked["max_batch_size"], batched.layout.alone) == (8, False)
    whole, judged = look(model, store=store)
    assert (whole["max_batch_size"], len(marked(whole))) == (32, 2)
    assert verdicts(judged)[late] == HOLDS


def test_random_answers_are_no_reason_to_part_rows(look):
    """One input is answered in several ways, so nothing can be said of rows."""
    noise = graph(
        [NODE("RandomNormalLike", ["x"], ["r"]), NODE("Add", ["x", "r"], ["y"])],
        [("x", REAL, ["n", 3])],
        [("y", REAL, ["n", 3])],
    )
    whole, judged = look(noise)
    assert (whole["max_batch_size"], verdicts(judged)["rows"]) == (32, NOT_TESTED)


def test_a_second_start_tests_nothing(look, tmp_path, monkeypatch):
    """What was found is kept with the file's content and the settings."""
    store = Store(tmp_path / "kept")
    _, first = look(attending(REAL, MASKED["added"][1], RANKS[2]), store=store)

    def fail(*_):
        raise AssertionError

    monkeypatch.setattr("ge_backend.serving.assumptions.trial.run_once", fail)
    monkeypatch.setattr(served_module, "padding_verdict", fail)
    _, second = look(attending(REAL, MASKED["added"][1], RANKS[2]), store=store)
    assert second == first
