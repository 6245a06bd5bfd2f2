"""The guest kernel: User-Mode Linux in virtual time, with this machine's files.

- `cache` finds and checks it in the user's cache, with the library that trainers preload; `build`
  compiles it from Debian's sources.
- `boot` boots one with a command as its work, or as a test.
"""
