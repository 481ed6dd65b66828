"""The generated pages say what the tables in the code say."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def generate():
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    "page", ["configuration", "metrics", "presets", "from_cpp_ge_backend", "releases"]
)
def test_page_is_up_to_date(generate, page):
    """The committed page is what the generator writes now."""
    assert (ROOT / "docs" / f"{page}.md").read_text() == getattr(generate, page)()


def test_every_metric_and_setting_is_documented(generate):
    """Each name of the tables appears in its page."""
    from ge_backend.metrics import METRICS
    from ge_backend.model.config.settings import FAMILIES, MACHINE_SETTINGS, SETTINGS

    assert all(f"`{name}`" in generate.metrics() for name in METRICS)
    page = generate.configuration()
    assert all(f"`{setting.key}`" in page for setting in SETTINGS)
    assert all(f"`{setting.variable}`" in page for setting in MACHINE_SETTINGS)
    assert all(f"`{family.prefix}<" in page for family in FAMILIES)
