"""Histograms of sizes."""

from ge_backend.shapes.traffic.histogram import SizeHistogram


def histogram_of(counts):
    """Return one in which each size was seen so often."""
    histogram = SizeHistogram()
    for value, count in counts.items():
        histogram.add(value, count)
    return histogram
