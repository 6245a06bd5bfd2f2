"""Shape machines over SSH, all or none, and restore them whatever happens.

- `fleet` applies and clears on all hosts; `preflight` reports deviations before any change.
- `facts` are what preflight knows of a host; configurations are compiled from them.
- `deployer` sends a zip of the `agent` to a host and calls it.
"""
