"""The models of an ensemble: found beside it, and agreeing at both ends."""

from dataclasses import replace

import pytest

from ge_backend.errors import ConfigError
from ge_backend.model.config.model import ModelConfig
from ge_backend.serving.ensemble.members import check_members, read_ensemble

STEP = """
input [ { name: "x" data_type: TYPE_FP32 dims: [ 2 ] }, { name: "o" data_type: TYPE_FP32 dims: [ 1 ] optional: true } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 2 ] } ]
"""


def write(folder, text, versions=("1",)):
    for version in versions:
        (folder / version).mkdir(parents=True)
    (folder / "config.pbtxt").write_text(text)


def ensemble(version=-1, model="first", output="y"):
    return f"""
    platform: "ensemble"
    input [ {{ name: "X" data_type: TYPE_FP32 dims: [ 2 ] }} ]
    output [ {{ name: "Y" data_type: TYPE_FP32 dims: [ 2 ] }} ]
    ensemble_scheduling {{ step [
      {{ model_name: "second" model_version: -1 input_map {{ key: "x" value: "m" }}
         output_map {{ key: "y" value: "Y" }} }},
      {{ model_name: "{model}" model_version: {version} input_map {{ key: "x" value: "X" }}
         output_map {{ key: "{output}" value: "m" }} }} ] }}
    """


@pytest.fixture
def repository(tmp_path):
    kept = "version_policy { specific { versions: [ 1, 3 ] } }"
    write(tmp_path / "first", f'backend: "ge" {STEP} {kept}', versions=("1", "2", "3"))
    write(tmp_path / "second", f'backend: "ge" {STEP}')
    write(tmp_path / "foreign", f'backend: "onnxruntime" {STEP}')
    fuses = 'parameters { key: "fuse" value { string_value: "other" } }'
    write(tmp_path / "joined", f'backend: "ge" {fuses}')
    write(tmp_path / "live", f'backend: "ge" {STEP} sequence_batching {{ direct {{}} }}')
    write(tmp_path / "nested", ensemble())
    write(tmp_path / "writer", 'backend: "ge"')
    (tmp_path / "writer" / "1" / "config.json").write_text('{"model_type": "llama"}')
    return tmp_path


def read(repository, text):
    write(repository / "e", text)
    return read_ensemble(repository, "e")


def configs(found):
    return [folder.config({}) for folder in found.folders]


def own(found):
    return ModelConfig.read(found.document, directory=None, version="1", environment={})


@pytest.mark.parametrize(("version", "served"), [(-1, "3"), (1, "1"), (3, "3")])
def test_steps_are_found_beside_the_ensemble(repository, version, served):
    """In the order in which they run, of the version that the ensemble names."""
    found = read(repository, ensemble(version))
    assert [step.model for step in found.dag.steps] == ["first", "second"]
    assert [folder.version for folder in found.folders] == [served, "1"]
    check_members(found.dag, own(found), configs(found))


def test_what_leads_only_to_outputs_that_are_left_out_is_no_step(repository):
    """As for the host's ensemble, of which nobody asks for them."""
    other = """{ model_name: "third" model_version: -1 input_map { key: "x" value: "m" }
      output_map { key: "y" value: "Z" } }"""
    more = 'output [ { name: "Z" data_type: TYPE_FP32 dims: [ 2 ] },'
    write(repository / "third", f'backend: "ge" {STEP}')
    text = ensemble().replace("step [", f"step [ {other},").replace("output [", more, 1)
    found = read(repository, text)
    assert [step.model for step in found.dag.steps] == ["first", "third", "second"]
    less = found.leading_to(["Y"])
    assert [step.model for step in less.dag.steps] == ["first", "second"]
    assert [folder.path.name for folder in less.folders] == ["first", "second"]
    assert less.dag.outputs == ("Y",)
    assert less.dag.needed(["Y"]) == {0, 1}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (ensemble(2), "step 'first' has no version 2"),
        (ensemble(model="gone"), "step 'gone' is not in"),
        (ensemble(model="foreign"), "step 'foreign': .*backend is 'onnxruntime'"),
        (ensemble(model="live"), "step 'live' has sequences"),
        (ensemble(model="joined"), "step 'joined' is itself a fused model, of 'other'; put"),
        (ensemble(model="nested"), "step 'nested': it is an ensemble itself; put its own steps in"),
        (ensemble(model="writer"), "step 'writer' writes text.*leave this ensemble to the host"),
        ('platform: "ensemble"', "is no ensemble"),
    ],
)
def test_what_cannot_be_a_step_is_refused(repository, text, message):
    """By its name, with what to do about it."""
    with pytest.raises(ConfigError, match=message):
        read(repository, text)


def test_an_ensemble_that_is_not_there_is_refused(repository):
    """The parameter is named."""
    with pytest.raises(ConfigError, match="parameter 'fuse' names 'nobody'"):
        read_ensemble(repository, "nobody")


def test_an_output_that_a_step_does_not_have_is_refused(repository):
    """What it has is listed."""
    found = read(repository, ensemble(output="z"))
    with pytest.raises(ConfigError, match="step 'first' has no output 'z'; it has y"):
        check_members(found.dag, own(found), configs(found))


def test_an_input_that_nobody_gives_is_refused(repository):
    """Optional ones may be left out, others not."""
    found = read(repository, ensemble())
    first, second = configs(found)
    needy = replace(first, inputs=tuple(replace(i, optional=False) for i in first.inputs))
    with pytest.raises(ConfigError, match="step 'first' needs its input 'o'"):
        check_members(found.dag, own(found), [needy, second])


def test_ends_that_differ_are_refused(repository):
    """Between steps, and between the ensemble and a step."""
    found = read(repository, ensemble())
    first, second = configs(found)
    wide = replace(second, inputs=tuple(replace(i, dims=(3,)) for i in second.inputs))
    with pytest.raises(
        ConfigError, match=r"'y' of step 'first' .* does not fit 'x' of step 'second'"
    ):
        check_members(found.dag, own(found), [first, wide])
    one = tuple(replace(o, dims=(1,), graph_dims=(1,)) for o in own(found).outputs)
    short = replace(own(found), outputs=one)
    with pytest.raises(ConfigError, match="does not fit 'Y' of the ensemble's output"):
        check_members(found.dag, short, [first, second])


def test_a_declared_tensor_that_the_ensemble_does_not_have_is_refused(repository):
    """A fused model may declare fewer outputs than the ensemble, not others."""
    found = read(repository, ensemble())
    other = replace(own(found), outputs=tuple(replace(o, name="W") for o in own(found).outputs))
    with pytest.raises(ConfigError, match=r"'W'.* which no step of ensemble 'e' writes"):
        check_members(found.dag, other, configs(found))
    nothing = replace(own(found), inputs=())
    with pytest.raises(ConfigError, match="'X', which"):
        check_members(found.dag, nothing, configs(found))


def test_the_ensembles_own_reshape_has_been_done(repository):
    """The host does it before the fused model is asked and after it has answered."""
    found = read(repository, ensemble())
    both = own(found)
    reshaped = replace(
        both,
        inputs=tuple(replace(i, dims=(1, 2)) for i in both.inputs),
        outputs=tuple(replace(o, dims=(2, 1)) for o in both.outputs),
    )
    check_members(found.dag, reshaped, configs(found))
