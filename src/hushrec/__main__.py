"""Run the command `hushrec`, for `python -m hushrec`."""

from hushrec.cli import main

main()
