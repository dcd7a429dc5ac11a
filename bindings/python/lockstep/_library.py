"""Finds and opens liblockstep."""
import glob
import os
import runpy
import subprocess
import tempfile

from lockstep import _build, _declarations


def _parsed():
    """The parsed declarations, if setup.py has not written them."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "_abi.py")
        _build.emit(_declarations.TEXT, path)
        return runpy.run_path(path)["ffi"]


try:
    from lockstep._abi import ffi
except ImportError:
    ffi = _parsed()

try:
    from lockstep._origin import SOURCE  # the source tree from which the package was installed, written by setup.py
except ImportError:
    SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

FILE = "liblockstep.so." + ".".join(_declarations.VERSION.split(".")[:2])


def _in_builds():
    """The libraries that were built in the source tree: build first, then the newest."""
    builds = glob.glob(os.path.join(SOURCE, "build*", "lib", FILE)) if os.path.isdir(SOURCE) else []
    return sorted(builds, key=lambda path: (os.path.basename(path[:path.index("/lib/")]) != "build", -os.path.getmtime(path)))


def _by_pkg_config():
    try:
        found = subprocess.run(["pkg-config", "--variable=libdir", "lockstep"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return []
    path = os.path.join(found.stdout.strip(), FILE)
    return [path] if os.path.exists(path) else []


def _candidates():
    chosen = os.environ.get("LOCKSTEP_LIBRARY")
    if chosen:
        inside = [os.path.join(chosen, part, FILE) for part in ("", "lib")] if os.path.isdir(chosen) else []
        return [path for path in inside if os.path.exists(path)] or [chosen]
    return _in_builds()[:1] or _by_pkg_config() or [FILE]


def _open():
    path = _candidates()[0]
    try:
        library = ffi.dlopen(path)
    except OSError as error:
        where = "LOCKSTEP_LIBRARY" if os.environ.get("LOCKSTEP_LIBRARY") else "the source tree, by pkg-config, along the loader's path"
        raise ImportError(f"lockstep: cannot open {path} (looked for in: {where}): {error}; build or install Lockstep, or set "
                          f"LOCKSTEP_LIBRARY to the path of {FILE} or its folder, or PKG_CONFIG_PATH to the folder of lockstep.pc") from None
    try:
        found = ffi.string(library.ls_version()).decode()
    except (AttributeError, ffi.error):
        raise ImportError(f"lockstep: {path} is not liblockstep: set LOCKSTEP_LIBRARY to the path of {FILE}") from None
    if found != _declarations.VERSION:
        raise ImportError(f"lockstep: {path} is version {found}, but this package is for version {_declarations.VERSION}: install the "
                          "package of the same version, or set LOCKSTEP_LIBRARY to another library")
    return library, path


lib, PATH = _open()


def command():
    """The path of the command `lockstep` that belongs to the library, or its name."""
    beside = os.path.join(os.path.dirname(os.path.dirname(os.path.realpath(PATH))), "bin", "lockstep")
    return beside if os.path.exists(beside) else "lockstep"
