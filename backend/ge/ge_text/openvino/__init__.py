"""Text generation through OpenVINO: the decoder as one compiled graph with paged attention."""
