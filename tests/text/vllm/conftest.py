import pytest

from fakes.vllm_package import install


@pytest.fixture
def async_llm(monkeypatch):
    """The class in vLLM's place; `last` is the engine that was started last."""
    return install(monkeypatch)
