"""What a running server publishes."""

import urllib.request

from prometheus_client.parser import text_string_to_metric_families


def metric(server, name, **labels):
    """Return the sum of a metric's series that carry these labels; 0 while there is none."""
    with urllib.request.urlopen(server.metrics, timeout=30) as page:
        families = text_string_to_metric_families(page.read().decode())
    return sum(
        sample.value
        for family in families
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )
