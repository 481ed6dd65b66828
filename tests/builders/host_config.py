"""Configurations as the host gives them, made by code."""

import json

from ge_backend.model.config.model import ModelConfig


def config_of(*, inputs, outputs=(), max_batch_size=4, parameters=None, **blocks):
    """Return the settings of a model with these tensors."""
    return ModelConfig.read(
        {
            "name": "m",
            "max_batch_size": max_batch_size,
            "input": list(inputs),
            "output": list(outputs),
            "parameters": {k: {"string_value": v} for k, v in (parameters or {}).items()},
            **blocks,
        },
        directory=None,
        version="1",
        environment={},
    )


def tensor(name, dims=(-1,), dtype="TYPE_FP32", **more):
    """Return a tensor as a configuration lists it."""
    return {"name": name, "data_type": dtype, "dims": list(dims), **more}


def instance_of(document):
    """Return the first instance of the model of this configuration; the host is a fake."""
    from ge_backend.host.instance import Instance

    name = document["name"]
    return Instance.read(
        {
            "model_name": name,
            "model_version": "1",
            "model_instance_name": f"{name}_0_0",
            "model_config": json.dumps(document),
        }
    )
