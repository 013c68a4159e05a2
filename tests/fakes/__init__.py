"""Stand-ins that tests share: they hold what was said to them and answer from memory."""
