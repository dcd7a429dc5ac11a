"""Builds the package. Needs no C compiler: cffi reads the declarations in its ABI mode."""
import os

import cffi
from setuptools import setup
from setuptools.command.build_py import build_py

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCE = os.path.dirname(os.path.dirname(HERE))


def declarations():
    found = {}
    with open(os.path.join(HERE, "lockstep/_declarations.py"), encoding="utf-8") as file:
        exec(file.read(), found)
    return found


class Build(build_py):
    """Adds the parsed declarations, so that importing the package parses nothing, and the place of the source tree."""

    def run(self):
        super().run()
        folder = os.path.join(self.build_lib, "lockstep")
        os.makedirs(folder, exist_ok=True)
        ffi = cffi.FFI()
        ffi.set_source("lockstep._abi", None)
        ffi.cdef(declarations()["TEXT"])
        ffi.emit_python_code(os.path.join(folder, "_abi.py"))
        with open(os.path.join(folder, "_origin.py"), "w", encoding="utf-8") as file:
            file.write(f"SOURCE = {SOURCE!r}\n")


setup(version=declarations()["VERSION"], cmdclass={"build_py": Build})
