"""A run: from plans to records.

- `controller` starts sessions, keeps every finished iteration and decides trust.
- `launch` starts a session in private namespaces or a guest kernel, with a job to carry out.
- `local_session` is its program: it builds a testbed. `session` runs plans on any testbed.
- `calibration` measures a device.
"""
