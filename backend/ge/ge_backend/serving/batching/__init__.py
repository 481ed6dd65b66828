"""A request's way: request, plan, stage, submit, split; one arrow, one file."""
