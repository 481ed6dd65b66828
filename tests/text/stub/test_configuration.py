"""What is filled in of the configuration of a checkpoint that generates text."""

import json


def test_a_text_generator_has_no_batches(pb_utils, tmp_path):
    """Whatever its configuration says: the host would check sizes that it has made up itself."""
    from ge_backend.host.complete import complete_config

    pb_utils.MODEL_DIR = str(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    given = {"name": "m", "max_batch_size": 8, "dynamic_batching": {"preferred_batch_size": [8]}}
    config = complete_config(pb_utils.ModelConfig(json.dumps(given))).as_dict()
    assert config["max_batch_size"] == 0
    assert "dynamic_batching" not in config
    assert config["model_transaction_policy"] == {"decoupled": True}
