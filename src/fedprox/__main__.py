"""`python -m fedprox`: the command line."""

from fedprox.cli import main

main()
