"""The package's log lines arrive in the host's log at the right level."""

import logging

import pytest


@pytest.mark.parametrize(
    ("level", "name"),
    [("info", "info"), ("warning", "warn"), ("error", "error"), ("critical", "error")],
)
def test_level_and_model_are_kept(pb_utils, level, name):
    """A record is written at the host's nearest level, with the model's name before it."""
    from ge_backend.host.logs import install_handler

    install_handler("encoder")
    getattr(logging.getLogger("ge_backend.serving.warmup.warmup"), level)("took %.1f s", 2)
    assert pb_utils.Logger.lines == [(name, "ge encoder: took 2.0 s")]


def test_installing_twice_writes_once(pb_utils):
    """One handler, however often a stub installs it; debug lines are not sent."""
    from ge_backend.host.logs import install_handler

    install_handler("a")
    install_handler("b")
    logging.getLogger("ge_backend.x").debug("not shown")
    logging.getLogger("ge_backend.x").info("shown")
    assert pb_utils.Logger.lines == [("info", "ge b: shown")]
