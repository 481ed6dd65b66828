"""Language models in torch: a paged cache, decoders that read it, and drawing tokens."""
