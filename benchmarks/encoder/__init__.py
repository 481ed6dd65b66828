"""One real encoder, served by this backend and by what a user would write or take instead."""
