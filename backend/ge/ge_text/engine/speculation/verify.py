"""Which drafts were right: those that the model would have drawn itself.

A token of ours is a function of scores, seed and position. So the scores behind a draft need not be
weighed against what guessed it: the model draws at every position as it would have done alone,
and a draft is right if it is what was drawn before it. What is behind the first wrong one was drawn
for another text, and is dropped.

For a fixed guess this is rejection sampling itself: a draft x is kept with probability p(x), and
what stands in its place otherwise is drawn from p without x, which is norm(max(0, p - q)) for a q
that is certain of x. But more holds than equal distributions: no guess changes a single token.

Source: Leviathan et al., arXiv 2211.17192; Daliri et al., arXiv 2408.07978 (one number for both).
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["num_right"]


def num_right(drafts: Sequence[int], drawn: Sequence[int]) -> int:
    """Return how many drafts are right, from the first on.

    Args:
        drafts: guesses at consecutive tokens.
        drawn: what the model drew in the place of each, in a text that has the drafts before it;
            more may follow. The tokens of the text are as many of them, and the next one.
    """
    for place, (draft, token) in enumerate(zip(drafts, drawn, strict=False)):
        if draft != token:
            return place
    return len(drafts)
