import json

import pytest

CONFIG = """\
backend: "ge"
max_batch_size: 4
parameters {{ key: "device" value {{ string_value: "null" }} }}
parameters {{ key: "buckets.rows" value {{ string_value: "4" }} }}
parameters {{ key: "buckets.length" value {{ string_value: "{length}" }} }}
"""


@pytest.fixture
def repository(tmp_path, cache):
    """Models of the null device, whose scratch is one byte per element: 4 rows of this length."""

    def write(**lengths):
        for name, length in lengths.items():
            folder = tmp_path / "models" / name
            (folder / "1").mkdir(parents=True)
            (folder / "config.pbtxt").write_text(CONFIG.format(length=length))
            graph = {
                "inputs": [{"name": "x", "dtype": "FP32", "dims": ["batch", "length"]}],
                "outputs": [{"name": "y", "dtype": "FP32", "dims": ["batch"]}],
                "static_shapes": True,
            }
            (folder / "1" / "model.null").write_text(json.dumps(graph))
        return tmp_path / "models"

    return write


def planned(ge_backend, *arguments):
    code, out, _ = ge_backend("plan", *arguments, "--json")
    return code, json.loads(out)


def test_a_repository_that_fits(repository, ge_backend):
    """Two models in one pool that is too small for both at once take turns."""
    folder = repository(large=2048, small=1024)
    code, found = planned(ge_backend, folder, "--pool", "10KiB")
    device = found["devices"]["null"]
    assert (code, found["fits"], device["pool_bytes"]) == (0, True, 10240)
    models = device["models"]
    assert {name: m["workspace_bytes"] for name, m in models.items()} == {
        "large": 8192,
        "small": 4096,
    }
    assert models["large"]["waits_for"] == ["small"]
    code, found = planned(ge_backend, folder, "--pool", "1MiB")
    assert found["devices"]["null"]["models"]["large"]["waits_for"] == []


def test_what_does_not_fit_is_the_exit_code(repository, ge_backend):
    """And a line that says by how much; the others have their place."""
    folder = repository(large=2048, small=512)
    code, out, _ = ge_backend("plan", folder, "--pool", "null=6KiB")
    assert code == 1
    assert "does not fit: large needs 8 KiB of workspace, 2 KiB more than the pool has" in out
    assert "0 B to 2" in out


def test_the_pool_of_the_environment(repository, ge_backend, monkeypatch):
    """As a server would have it; --pool 0 is none."""
    monkeypatch.setenv("GE_WORKSPACE_POOL", "cpu=1GiB,64KiB")
    folder = repository(one=64)
    assert planned(ge_backend, folder)[1]["devices"]["null"]["pool_bytes"] == 65536
    assert planned(ge_backend, folder, "--pool", "0")[1]["devices"]["null"]["pool_bytes"] == 0


def test_a_broken_model_is_not_the_end(repository, ge_backend):
    """Its error is a line, the others are planned."""
    folder = repository(good=64, bad=64, worse=64)
    (folder / "bad" / "1" / "model.null").write_text("{")
    (folder / "worse" / "config.pbtxt").write_text("backend: ")
    code, found = planned(ge_backend, folder, "--pool", "1KiB")
    assert (code, found["fits"], set(found["broken"])) == (1, False, {"bad", "worse"})
    assert list(found["devices"]["null"]["models"]) == ["good"]
    code, out, _ = ge_backend("plan", folder)
    assert "broken: bad: " in out


def test_models_of_other_backends_are_left_out(repository, ge_backend):
    """Ensembles too; they are named."""
    folder = repository(good=64)
    for name, text in (("python", 'backend: "python"'), ("whole", 'platform: "ensemble"')):
        (folder / name / "1").mkdir(parents=True)
        (folder / name / "config.pbtxt").write_text(text)
    code, found = planned(ge_backend, folder)
    assert (code, found["left_out"], found["broken"]) == (0, ["python", "whole"], {})


def test_a_fused_ensemble_is_left_out(repository, ge_backend):
    """It has no graph of its own; its steps are models of the repository."""
    folder = repository(good=64)
    (folder / "fused" / "1").mkdir(parents=True)
    fused = 'backend: "ge" parameters { key: "fuse" value { string_value: "whole" } }'
    (folder / "fused" / "config.pbtxt").write_text(fused)
    code, found = planned(ge_backend, folder)
    assert (code, found["left_out"], found["broken"]) == (0, ["fused"], {})


def test_what_a_server_would_refuse_is_broken(repository, ge_backend):
    """An ensemble has a folder for its version, if an empty one; other folders are no models."""
    folder = repository(good=64)
    for name in ("whole", "notes"):
        (folder / name).mkdir()
    (folder / "whole" / "config.pbtxt").write_text('platform: "ensemble"')
    code, found = planned(ge_backend, folder)
    assert (code, found["fits"], set(found["broken"])) == (1, False, {"notes", "whole"})


def test_all_models_on_another_device(repository, ge_backend):
    """The option counts for every model."""
    _, found = planned(ge_backend, repository(one=64, two=64), "--device", "null:1")
    assert list(found["devices"]) == ["null:1"]
    assert len(found["devices"]["null:1"]["models"]) == 2


def test_progress_is_not_in_the_output(repository, ge_backend):
    """Standard output is one JSON object and nothing else."""
    _, out, _ = ge_backend("plan", repository(one=64), "--json")
    assert out.count("\n") == 1


@pytest.mark.parametrize("kind", ["missing", "empty", "file"])
def test_no_repository(tmp_path, ge_backend, kind):
    """One line, and the code of wrong usage."""
    folder = tmp_path / "models"
    if kind == "empty":
        folder.mkdir()
    elif kind == "file":
        folder.write_text("")
    code, out, err = ge_backend("plan", folder)
    assert (code, out) == (2, "")
    assert ("has no models" if kind == "empty" else "is not a folder") in err


def test_a_size_that_is_none(repository, ge_backend):
    """The option is named."""
    code, _, err = ge_backend("plan", repository(one=64), "--pool", "much")
    assert code == 2
    assert "--pool: 'much' is not a size" in err


def test_a_load_is_planned_for_one_model(repository, ge_backend):
    """The only one, or the one that is named; the output is one JSON object with --json."""
    folder = repository(large=64)
    code, out, _ = ge_backend("plan", folder, "--load", "10", "--p99", "1000")
    assert code == 0
    assert "replicas: 1" in out
    repository(small=32)
    code, out, err = ge_backend("plan", folder, "--load", "10", "--p99", "1000")
    assert (code, out) != (0, "")
    assert "--load is of one model, which --model names; expected one of large, small" in err
    arguments = ("--load", "10", "--p99", "1000", "--model", "small")
    code, found = planned(ge_backend, folder, *arguments)
    assert (code, found["model"], found["replicas"]) == (0, "small", 1)


IMAGES = """\
backend: "ge"
max_batch_size: {rows}
parameters {{ key: "device" value {{ string_value: "null" }} }}
"""


def images(folder, rows, dims):
    """Write a model of inputs with these dims to a repository."""
    model = folder / "images"
    (model / "1").mkdir(parents=True)
    (model / "config.pbtxt").write_text(IMAGES.format(rows=rows))
    x = {"name": "x", "dtype": "FP32", "dims": ["batch", *dims]}
    y = {"name": "y", "dtype": "FP32", "dims": ["batch"]}
    (model / "1" / "model.null").write_text(json.dumps({"inputs": [x], "outputs": [y]}))
    return folder


def test_sizes_that_only_requests_tell_are_a_guess(tmp_path, cache, ge_backend):
    """A large image takes more than what was run, which the plan says."""
    folder = images(tmp_path, 8, [3, "height", "width"])
    out = ge_backend("plan", folder)[1]
    guess = "images: its workspace is that of one size, a guess (height 16, width 16)"
    assert guess in out
    found = planned(ge_backend, folder)[1]["devices"]["null"]["models"]["images"]
    assert found["guessed"] == {"height": 16, "width": 16}
    out = ge_backend("plan", folder, "--load", "10", "--p99", "1000")[1]
    assert "(height 16, width 16 is a guess, larger requests take longer)" in out


def test_a_model_of_one_size_has_no_largest_one(tmp_path, cache, ge_backend):
    """Nor does one that does not batch run several requests together."""
    folder = images(tmp_path / "one", 8, [3, 4, 4])
    assert "guess" not in ge_backend("plan", folder)[1]
    out = ge_backend("plan", folder, "--load", "10", "--p99", "1000")[1]
    assert "(all requests have one size)" in out
    folder = images(tmp_path / "alone", 0, [3, 4, 4])
    out = ge_backend("plan", folder, "--load", "10", "--p99", "1000")[1]
    assert "and none runs beside it" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--load", "10"), "--load needs --p99"),
        (("--p99", "10"), "of use with --load only"),
        (("--load", "10", "--p99", "10", "--pool", "1GiB"), "of use without --load only"),
    ],
)
def test_options_that_do_not_go_together_are_refused(repository, ge_backend, arguments, message):
    """Of a load both numbers are needed, and it has no pool."""
    code, _, err = ge_backend("plan", repository(large=64), *arguments)
    assert code != 0
    assert message in err
