"""What an encoder can be measured by, one kind of task in each file."""
