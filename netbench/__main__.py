"""`python -m netbench`, for where the `netbench` script is not on the path."""

from netbench.cli import main

if __name__ == "__main__":
    main()
