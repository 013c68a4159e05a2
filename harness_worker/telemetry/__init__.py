"""What is seen of a worker and a scheduler from outside: metrics and spans."""
