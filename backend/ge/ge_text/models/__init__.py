"""Language models: what an engine of text generation gives a model and gets back. numpy only."""
