import builtins
from pathlib import Path

import pytest

from ge_backend.errors import ConfigError, DeviceUnavailable
from ge_backend.model.config.model_folder import read_document, read_folder, served_versions

WHOLE = """
backend: "ge"
max_batch_size: 16
default_model_filename: "m.onnx"
input [ { name: "x" data_type: TYPE_INT64 dims: [ -1, 4 ] allow_ragged_batch: true optional: true } ]
output { name: "y" data_type: TYPE_STRING dims: 2 reshape { } }
batch_input { kind: BATCH_ACCUMULATED_ELEMENT_COUNT target_name: "n" data_type: TYPE_FP32 source_input: "x" }
batch_output { target_name: "y" kind: BATCH_SCATTER_WITH_INPUT_SHAPE source_input: "x" }
instance_group [ { count: 2 kind: KIND_CPU }, { kind: KIND_CPU } ]
parameters { key: "buckets.rows" value { string_value: "1,8" } }
"""


@pytest.fixture
def folder(tmp_path):
    def make(text, *versions):
        path = tmp_path / "tiny"
        for version in versions or ("1",):
            (path / version).mkdir(parents=True)
        (path / "config.pbtxt").write_text(text)
        return path

    return make


def test_settings_are_those_that_the_host_would_give(folder):
    """Numbers, enums, flags and absent fields arrive as `ModelConfig` expects them."""
    read = read_folder(folder(WHOLE))
    config = read.config({"GE_DEVICE": "null"})
    assert (config.name, config.version, config.filename) == ("tiny", "1", "m.onnx")
    assert (config.max_batch_size, config.instances, config.device) == (16, 3, "null")
    assert config.directory == read.directory
    (x,) = config.inputs
    assert (x.dims, x.dtype.name, x.ragged, x.optional) == ((-1, 4), "INT64", True, True)
    (y,) = config.outputs
    assert (y.dims, y.graph_dims, y.dtype.name) == ((2,), (), "BYTES")
    (counts,) = config.batch_inputs
    assert counts.kind == "BATCH_ACCUMULATED_ELEMENT_COUNT"
    assert (counts.names, counts.sources) == (("n",), ("x",))
    assert config.batch_outputs[0].names == ("y",)
    assert config.buckets == {"rows": "1,8"}


@pytest.mark.parametrize("given", ["tiny", "tiny/.", "linked"])
def test_a_model_is_called_as_its_folder_in_the_repository(folder, tmp_path, monkeypatch, given):
    """Also where that is a link, as the host calls it; traffic goes by that name."""
    (tmp_path / "linked").symlink_to(folder(WHOLE))
    monkeypatch.chdir(tmp_path)
    read = read_folder(Path(given))
    assert read.config({}).name == Path(given).name
    assert read.path == tmp_path / given


@pytest.mark.parametrize("given", [".", "1/.."])
def test_a_folder_from_within_has_its_own_name(folder, monkeypatch, given):
    """Where the path does not say it."""
    monkeypatch.chdir(folder(WHOLE))
    assert read_folder(Path(given)).config({}).name == "tiny"


def test_the_first_of_an_enum_is_absent_and_understood(folder):
    """Protobuf does not write a field's zero."""
    text = 'backend: "ge" batch_input { kind: BATCH_ELEMENT_COUNT target_name: "n" data_type: TYPE_FP32 source_input: "x" }'
    (block,) = read_folder(folder(text)).config({}).batch_inputs
    assert block.kind == "BATCH_ELEMENT_COUNT"


@pytest.mark.parametrize(
    ("policy", "served"),
    [
        ("", ["10"]),
        ("version_policy { specific { versions: [ 2, 3 ] } }", ["2", "3"]),
        ("version_policy { latest { num_versions: 2 } }", ["3", "10"]),
        ("version_policy { all { } }", ["2", "3", "10"]),
    ],
)
def test_the_latest_version_is_read(folder, policy, served):
    """Folders are compared as numbers, if their names are such; a policy says which count."""
    path = folder(f'backend: "ge" {policy}', "2", "3", "10", "old", "011", "12.bak", "9" * 30)
    assert read_folder(path).version == served[-1]
    assert served_versions(path, read_document(path)) == served


def test_a_server_may_read_a_configuration_of_another_name(folder):
    """`--model-config-name`: the file of that name in `configs`, where there is one."""
    path = folder('backend: "ge" max_batch_size: 8')
    (path / "configs").mkdir()
    (path / "configs" / "edge.pbtxt").write_text('backend: "ge" max_batch_size: 0')
    assert read_document(path, "edge")["max_batch_size"] == 0
    assert read_document(path, "other")["max_batch_size"] == 8
    (path / "config.pbtxt").write_text('backend: "ge"')
    assert "max_batch_size" not in read_document(path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('backend: "onnxruntime"', "backend is 'onnxruntime', expected 'ge'"),
        ("", "backend is '', expected 'ge'"),
        ('backend: "ge"\nbuckets: 5', "config.pbtxt, line and column 2:1 : "),
        ('backend: "ge"\nversion_policy { specific { versions: 7 } }', "expected a folder 7"),
    ],
)
def test_what_the_host_would_not_serve(folder, text, said):
    """One error that names the file."""
    with pytest.raises(ConfigError) as caught:
        read_folder(folder(text))
    assert said in str(caught.value)
    assert "tiny" in str(caught.value)


def test_a_folder_that_is_no_model(tmp_path):
    """A repository, for example, has no config.pbtxt of its own."""
    with pytest.raises(ConfigError, match="expected the folder of one model"):
        read_folder(tmp_path)


def test_a_folder_that_may_not_be_listed(folder, monkeypatch):
    """As one that another user may enter only; the tests' own user may list any."""
    path = folder('backend: "ge"')

    def refuse(self):
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "iterdir", refuse)
    with pytest.raises(ConfigError, match=r"tiny cannot be read \(.*Permission denied"):
        read_folder(path)


def test_a_missing_library_is_named_with_its_extra(folder, monkeypatch):
    """The base package depends on numpy alone."""
    path, real = folder('backend: "ge"'), builtins.__import__

    def without(name, *args, **named):
        if name.startswith("tritonclient"):
            raise ImportError(f"No module named {name!r}")
        return real(name, *args, **named)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(DeviceUnavailable, match=r"triton-ge-backend\[server\]"):
        read_folder(path)
