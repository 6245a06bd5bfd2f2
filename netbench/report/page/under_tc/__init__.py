"""Published runs on equal machines with one root netem each: `machines` builds their plans."""
