"""Starts a Python script on several ranks: python -m lockstep.run -n 2 script.py ARGUMENTS. The options are those of `lockstep run`."""
import os
import sys

from lockstep._library import PATH, command


def arguments(given):
    """The arguments of `lockstep run`, with this Python before the first name of a Python script."""
    for i, each in enumerate(given):
        if each.endswith(".py") and not each.startswith("-"):
            return ["run", *given[:i], sys.executable, "-u", *given[i:]]
    return ["run", *given]


def main():
    os.environ.setdefault("LOCKSTEP_LIBRARY", PATH) if os.path.isabs(PATH) else None
    program = command()
    try:
        os.execvp(program, [program, *arguments(sys.argv[1:])])
    except OSError as error:
        sys.exit(f"lockstep.run: cannot start {program}: {error.strerror}; install Lockstep or add its command to PATH")


if __name__ == "__main__":
    main()
