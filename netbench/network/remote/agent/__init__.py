"""The node's side of `netbench net`: sent to a host as a zip, run as root, removed afterwards.

    python3 -I -S agent.zip OPERATION < request.json
    python3 -I -S agent.zip serve        stays, and answers lines of `OPERATION request`

`netbench.network.remote.deployer` builds the zip from this folder and modules of the controller.
All of them run on Python 3.9 and import nothing but the standard library and each other.

- `operations` answer requests, from `__main__`.
- `messages` are the parts of requests and answers that both sides name.
- `timer` is the dead-man timer: the process that restores an interface when its lease ends.
- `state` records who has an interface and what it had before; `restore` puts that back.
- `host` runs commands and reads interfaces; `foreign` restores qdiscs of others.
- `division` makes several nodes of a host, namespaces; `enter` starts a command in one of them.
- `facts` are read before anything is changed; `replay` loads changes at given times.
"""
