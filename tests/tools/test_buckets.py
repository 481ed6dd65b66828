import argparse
import json
from pathlib import Path

import pytest

from ge_tools.buckets import register

GOLDEN = Path(__file__).parents[1] / "backend" / "shapes" / "buckets" / "golden" / "bucketing.json"
RULES = {
    "range_exp": "exponential",
    "range_exp_legacy_fill": "exponential_fill",
    "range_lin": "linear",
    "range_pad": "padding_aware",
    "range_uni": "unified",
}
OPTIONS = ("min", "step", "max", "limit", "pad_max", "pad_percent", "turning_point")


@pytest.fixture
def command(capsys):
    """Return a function that runs `ge-backend buckets` and gives (code, stdout, stderr)."""

    def run(*arguments):
        parser = argparse.ArgumentParser(prog="ge-backend")
        register(parser.add_subparsers(required=True))
        parsed = parser.parse_args(["buckets", *map(str, arguments)])
        code = parsed.func(parsed)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def arguments_of(case):
    """Return the command line of a reference range, rounded as there."""
    line = ["--strategy", RULES[case["strategy"]], "--json", "--compat"]
    for name in OPTIONS:
        if name in case:
            line += [f"--{name.replace('_', '-')}", case[name]]
    if case.get("contiguous_pa"):
        line.append("--contiguous")
    return line


def test_reference_ranges_come_out_of_the_command(command):
    """Every reference range is printed as one JSON array, or is one line and exit code 2."""
    cases = [c for c in json.loads(GOLDEN.read_text())["cases"] if c["strategy"] in RULES]
    assert len(cases) > 200
    for case in cases:
        code, out, err = command(*arguments_of(case))
        if "error" in case:
            assert (code, out, err.count("\n")) == (2, "", 1), case
        else:
            assert (code, json.loads(out)) == (0, case["values"]), case


def test_filling_is_told_apart(command):
    """The older rule keeps as many sizes as there are points; the present one drops duplicates."""
    numbers = ("--min", 128, "--step", 128, "--max", 4096, "--limit", 13, "--json")
    assert len(json.loads(command("--strategy", "exponential_fill", *numbers)[1])) == 13
    assert len(json.loads(command("--strategy", "exponential", *numbers)[1])) == 12


def test_defaults(command):
    """From one, by one, doubling; padding up to a quarter; unified by steps of --step."""
    assert json.loads(command("--strategy", "exponential", "--max", 16, "--json")[1]) == [
        1,
        2,
        4,
        8,
        16,
    ]
    padded = command("--strategy", "padding_aware", "--min", 8, "--step", 8, "--max", 64, "--json")
    assert json.loads(padded[1]) == [8, 16, 24, 32, 40, 48, 64]
    unified = command("--strategy", "unified", "--step", 2, "--max", 8, "--json")
    assert json.loads(unified[1]) == [2, 4, 6, 8]


def test_a_table_to_read(command):
    """Without --json there is the complete rule, and the most padding per size."""
    _, out, _ = command("--strategy", "linear", "--min", 16, "--step", 16, "--max", 48)
    assert out == (
        "linear(min=16, step=16, max=48): 3 sizes\n"
        "size  most padding\n"
        "  16           94%\n"
        "  32           47%\n"
        "  48           31%\n"
    )


def test_a_file(command, tmp_path):
    """A file is printed as sorted entries, or as a table with the tokens of each."""
    path = tmp_path / "b.txt"
    path.write_text("(2, [64, 128], 0)\n(1, 1, range(8, 0, -4))\n")
    entries = [[1, 1, 4], [1, 1, 8], [2, 64, 0], [2, 128, 0]]
    assert json.loads(command("--file", path, "--json")[1]) == entries
    _, out, _ = command("--file", path)
    assert out.splitlines()[0] == f"4 buckets from {path}"
    assert out.splitlines()[1].split() == ["rows", "length", "blocks", "tokens"]
    assert out.splitlines()[-1].split() == ["2", "128", "0", "256"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--strategy", "linear"), "linear needs max"),
        (("--strategy", "linear", "--max", "many"), "--max is 'many', expected a whole number"),
        (("--strategy", "linear", "--max", "1.5"), "--max is '1.5', expected a whole number"),
        (("--strategy", "linear", "--max", 8, "--min", -1), "min is -1"),
        (("--strategy", "linear", "--max", 8, "--step", 0), "step is 0"),
        (("--strategy", "linear", "--max", 8, "--min", 9), "min is 9, expected at most max"),
        (("--strategy", "linear", "--max", 8, "--limit", 3), "linear does not take 'limit'"),
        (("--strategy", "linear", "--max", 8, "--contiguous"), "does not take 'contiguous'"),
        (("--strategy", "exponential", "--max", 8, "--limit", 0), "limit is 0"),
        (("--strategy", "exponential", "--max", 8, "--pad-max", 0), "does not take 'pad_max'"),
        (("--file", "missing.txt"), "missing.txt cannot be read"),
        (("--file", "missing.txt", "--pad-max", 8), "--pad-max belongs to --strategy"),
    ],
)
def test_what_cannot_be_made_is_one_line(command, arguments, said):
    """An error is one line on stderr that starts with the command's name, and exit code 2."""
    code, out, err = command(*arguments, "--json")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("ge-backend buckets: ")
    assert said in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("exponential", "--min", 128, "--step", 128, "--max", 100), "min is above max"),
        (("linear", "--min", 128, "--step", 10, "--max", 128), "makes no sizes"),
        (("linear", "--step", 32, "--max", 100), "sizes above 96 have no bucket"),
    ],
)
def test_surprising_results_are_pointed_out(command, arguments, said):
    """What a rule makes of unusual numbers is printed, with a note beside it."""
    code, out, err = command("--strategy", *arguments, "--json")
    assert code == 0
    assert isinstance(json.loads(out), list)
    assert err.startswith("ge-backend buckets: note: ")
    assert said in err


def test_a_source_is_needed(command):
    """Neither or both of --strategy and --file is a usage error."""
    for arguments in ((), ("--strategy", "linear", "--file", "x")):
        with pytest.raises(SystemExit) as caught:
            command(*arguments)
        assert caught.value.code == 2


def test_the_grid_of_a_model(model, ge_backend):
    """How each axis came about, a line per bucket, and what all sum up to."""
    code, out, err = ge_backend("buckets", "--model", model())
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[:3] == [
        "rows: list -> 1, 8",
        "length: list -> 16, 64",
        "4 buckets (rows x length), the largest 8x64",
    ]
    assert lines[3].split() == ["rows", "length", "elements", "cost", "ms", "tensors", "MiB"]
    assert [line.split() for line in lines[4:8]] == [
        ["1", "16", "16", "-", "0.000"],
        ["1", "64", "64", "-", "0.000"],
        ["8", "16", "128", "-", "0.001"],
        ["8", "64", "512", "-", "0.002"],
    ]
    assert lines[8].startswith("total: 4 buckets, 0 measured, tensors 0.003 MiB")
    assert len(lines) == 9


def test_costs_are_kept_from_what_was_measured(model, ge_backend):
    """--measure runs each bucket now; later calls, and starts, find what it kept."""
    folder = model(cost_ms={"8x64": 20.0, "*": 0.1})
    measured = json.loads(ge_backend("buckets", "--model", folder, "--measure", "--json")[1])
    costs = {tuple(line["bucket"]): line["cost_ns"] for line in measured["buckets"]}
    assert 20e6 <= costs[8, 64] < 200e6
    assert 0.1e6 <= costs[1, 16] < 20e6
    assert json.loads(ge_backend("buckets", "--model", folder, "--json")[1]) == measured
    assert measured["axes"] == {"rows": [1, 8], "length": [16, 64]}
    assert measured["buckets"][3]["tensor_bytes"] == 8 * 64 * 4 + 8 * 4
    text = ge_backend("buckets", "--model", folder)[1]
    assert "total: 4 buckets, 4 measured, " in text
    assert " ms for one run of each of those" in text


def test_the_command_finds_what_warm_up_measured(model, ge_backend):
    """A served model's costs are kept under the same key."""
    from ge_backend.serving.warmup.measure import measured_costs
    from ge_tools.model.offline import open_offline

    folder = model(cost_ms={"*": 1.0})
    with open_offline(folder) as opened:
        served = measured_costs(opened)
    assert min(served.values()) >= 1e6
    found = json.loads(ge_backend("buckets", "--model", folder, "--json")[1])
    assert {tuple(line["bucket"]): line["cost_ns"] for line in found["buckets"]} == served


def test_a_configuration_that_says_nothing(model, ge_backend):
    """Inputs, outputs and batching come from the graph, as when the host completes it."""
    ids = {"dtype": "INT64", "dims": ["batch", "length"]}
    folder = model(
        config='backend: "ge"\nparameters { key: "device" value { string_value: "null" } }\n',
        inputs=[{"name": "ids", **ids}, {"name": "attention_mask", **ids}],
        static_shapes=False,
        axis_limits={"length": 64},
    )
    axes = json.loads(ge_backend("buckets", "--model", folder, "--json")[1])["axes"]
    assert axes == {"rows": [1, 2, 4, 8, 16, 32], "length": [16, 32, 64]}


def test_memory_that_depends_on_the_request_is_not_told(model, ge_backend):
    """Texts have any length, and so have axes that are not padded."""
    text = model(outputs=[{"name": "y", "dtype": "BYTES", "dims": ["batch"]}])
    lines = json.loads(ge_backend("buckets", "--model", text, "--json")[1])["buckets"]
    assert {line["tensor_bytes"] for line in lines} == {None}
    out = ge_backend("buckets", "--model", text)[1]
    assert out.splitlines()[4].split() == ["1", "16", "16", "-", "-"]
    assert "tensors" not in out.splitlines()[-1]


def test_the_device_may_be_another(model, ge_backend):
    """--device comes before the model's own parameter."""
    code, _, err = ge_backend("buckets", "--model", model(), "--device", "tpu")
    assert code == 2
    assert "device 'tpu' is unknown" in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--model", "nowhere"), "expected the folder of one model"),
        (("--model", "nowhere", "--max", 8), "--max belongs to --strategy, not to --model"),
        (("--strategy", "linear", "--max", 8, "--measure"), "--measure belongs to --model"),
        (("--file", "x", "--device", "cpu"), "--device belongs to --model, not to --file"),
    ],
)
def test_models_and_options_that_do_not_fit(command, arguments, said):
    """An option that would have no effect is refused."""
    code, out, err = command(*arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert said in err
