"""What a run remembers and is told of what was remembered."""
