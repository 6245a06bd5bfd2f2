"""`netbench reproduce`: `command` is the command; `simulated` and `layouts` make its tables."""
