"""The command line: options, outputs, errors and exit codes around the use cases. main and options import typer."""
