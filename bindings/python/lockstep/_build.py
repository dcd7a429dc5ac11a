"""Writes the parsed declarations as a module without dependencies. setup.py calls it, and importing from a source tree does."""
import contextlib
import io


def emit(declarations, path):
    import cffi
    builder = cffi.FFI()
    builder.set_source("lockstep._abi", None)
    builder.cdef(declarations)
    with contextlib.redirect_stdout(io.StringIO()):  # cffi announces the file
        builder.emit_python_code(path)
