"""Ensembles of the host's, right ones and wrong ones, and the models that are their steps."""

from pathlib import Path

# Copies nothing and answers nobody: it is only loaded.
CODE = """
class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        if config.as_dict()["name"] == "grown":
            config.add_output({"name": "w", "data_type": "TYPE_FP32", "dims": [4]})
        return config

    def execute(self, requests):
        return []
"""
# Two steps on texts of any length, for a model that fuses it.
CHAIN = """
platform: "ensemble" max_batch_size: 4
input { name: "x" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "y" data_type: TYPE_FP32 dims: [ -1 ] }
ensemble_scheduling {
  step { model_name: "one" model_version: -1
    input_map { key: "x" value: "x" } output_map { key: "y" value: "between" } }
  step { model_name: "two" model_version: -1
    input_map { key: "x" value: "between" } output_map { key: "y" value: "y" } }
}
"""
X = 'name: "x" data_type: TYPE_FP32 dims: [ 4 ]'
Z, OPTIONAL = X.replace("x", "z"), X.replace("x", "o") + " optional: true"
Y = 'output [ { name: "y" data_type: TYPE_FP32 dims: [ 4 ] } ]'
MODELS = {
    "plain": f"max_batch_size: 4 input [ {{ {X} }} ] {Y}",
    "grown": f"max_batch_size: 4 input [ {{ {X} }} ] {Y}",
    "unbatched": f"input [ {{ {X} }} ] {Y}".replace("[ 4 ]", "[ -1, 4 ]"),
    "needy": f"max_batch_size: 4 input [ {{ {X} }}, {{ {Z} }}, {{ {OPTIONAL} }} ] {Y}",
    "reshaped": f"max_batch_size: 4 input [ {{ {X} reshape {{ shape: [ 2, 2 ] }} }} ] {Y}",
}


def step(model="plain", takes="x: X", gives="y: Y", version=-1):
    """Return a step; `takes` and `gives` are its maps, written short."""
    maps = [
        f'{field} {{ key: "{key}" value: "{value}" }}'
        for field, pairs in (("input_map", takes), ("output_map", gives))
        for key, value in (pair.split(": ") for pair in pairs.split(", "))
    ]
    return f'{{ model_name: "{model}" model_version: {version} {" ".join(maps)} }}'


def ensemble(*steps, rows=4, takes="dims: [ 4 ]", gives="[ 4 ]", kind="TYPE_FP32", more=""):
    """Return the configuration of an ensemble that makes Y of X."""
    return f"""
    platform: "ensemble" max_batch_size: {rows}
    input [ {more} {{ name: "X" data_type: {kind} {takes} }} ]
    output [ {{ name: "Y" data_type: TYPE_FP32 dims: {gives} }} ]
    ensemble_scheduling {{ step [ {", ".join(steps or [step()])} ] }}
    """


RIGHT = {
    "one": ensemble(),
    "two": ensemble(step(gives="y: M"), step(takes="x: M")),
    "free": ensemble(takes="dims: [ -1 ]"),
    "rows_in_front": ensemble(rows=0, takes="dims: [ -1, 4 ]", gives="[ -1, 4 ]"),
    "of_unbatched": ensemble(step("unbatched")),
    "of_reshaped": ensemble(step("reshaped")),
    "reshapes": ensemble(takes="dims: [ 2, 2 ] reshape { shape: [ 4 ] }"),
    "of_grown": ensemble(step("grown", gives="w: Y")),
    "of_ensemble": ensemble(step("one", takes="X: X", gives="Y: Y")),
    "with_optional": ensemble(step("needy", takes="x: X, z: X")),
}
# And what is said of them.
WRONG = {
    "other_input": (
        ensemble(step("one", takes="x: X", gives="Y: Y")),
        "'one' has no input 'x'; it has X",
    ),
    "other_output": (
        ensemble(step("one", takes="X: X", gives="y: Y")),
        "'one' has no output 'y'; it has Y",
    ),
    "other_type": (
        ensemble(kind="TYPE_INT64"),
        "'X' of the ensemble's input (INT64 [batch, 4]) does not fit 'x'",
    ),
    "other_size": (
        ensemble(takes="dims: [ 5 ]"),
        "(FP32 [batch, 5]) does not fit 'x' of step 'plain'",
    ),
    "other_answer": (
        ensemble(gives="[ 5 ]"),
        "'y' of step 'plain' (FP32 [batch, 4]) does not fit 'Y'",
    ),
    "not_reshaped": (
        ensemble(step("reshaped"), takes="dims: [ 2, 2 ]"),
        "does not fit 'x' of step 'reshaped'",
    ),
    "too_many_rows": (ensemble(rows=8), "has max_batch_size 4, less than the ensemble's 8"),
    "too_little": (ensemble(step("needy")), "'needy' needs its input 'z'"),
    "no_such_step": (ensemble(step("gone")), "step 'gone' is not in"),
    "no_such_version": (ensemble(step(version=3)), "has no version 3"),
    "unused": (ensemble(step(), step(gives="y: Q")), "nobody takes tensor 'Q'"),
    "unused_input": (ensemble(more=f"{{ {X} }},"), "nobody takes tensor 'x'"),
    "unwritten": (ensemble(step(takes="x: N")), "takes tensor 'N', which nobody writes"),
    "written_twice": (ensemble(step(), step()), "tensor 'Y' is written by output 'y'"),
}


def write_hosted(repository: Path) -> Path:
    """Write them all, and return the repository."""
    configs = {name: f'backend: "python" {text}' for name, text in MODELS.items()}
    configs |= RIGHT | {name: text for name, (text, _) in WRONG.items()}
    for name, text in configs.items():
        version = repository / name / "1"
        version.mkdir(parents=True)
        (version.parent / "config.pbtxt").write_text(text)
        if name in MODELS:
            (version / "model.py").write_text(CODE)
    return repository
