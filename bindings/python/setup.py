"""Builds the package. Needs no C compiler: cffi reads the declarations in its ABI mode."""
import os
import runpy

from setuptools import setup
from setuptools.command.build_py import build_py

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCE = os.path.dirname(os.path.dirname(HERE))


DECLARATIONS = runpy.run_path(os.path.join(HERE, "lockstep/_declarations.py"))


class Build(build_py):
    """Adds the parsed declarations, so that importing the package parses nothing, and the place of the source tree."""

    def run(self):
        super().run()
        folder = os.path.join(self.build_lib, "lockstep")
        os.makedirs(folder, exist_ok=True)
        emit = runpy.run_path(os.path.join(HERE, "lockstep/_build.py"))["emit"]
        emit(DECLARATIONS["TEXT"], os.path.join(folder, "_abi.py"))
        with open(os.path.join(folder, "_origin.py"), "w", encoding="utf-8") as file:
            file.write(f"SOURCE = {SOURCE!r}\n")


setup(version=DECLARATIONS["VERSION"], cmdclass={"build_py": Build})
