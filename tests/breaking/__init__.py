"""Tests of the slower tier: all of them are marked `breaking`, and an everyday run does without them."""
