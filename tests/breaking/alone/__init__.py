"""Long runs of the slower tier, which need the machine for themselves: all of them are marked `alone`."""
