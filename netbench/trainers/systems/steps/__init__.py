"""Folder that `script` puts on the path of a script's Python, which imports `sitecustomize`."""
