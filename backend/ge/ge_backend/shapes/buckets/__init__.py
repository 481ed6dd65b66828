"""The static shapes that a model is prepared for, and what a run in each costs."""
