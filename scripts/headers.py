"""Reads the declarations of the public headers, for the scripts that generate bindings: scripts/fortran, scripts/python."""
import os
import re
import subprocess
import sys

SOURCE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


class Value:
    """The C type and the name of a parameter, a field or a result."""

    def __init__(self, text):
        self.dims = re.findall(r"\[(\w+)\]", text)
        text = re.sub(r"\[\w+\]", "", text).strip()
        callback = re.match(r".*?\(\s*\*\s*(\w+)\s*\)\s*\(", text)
        self.is_callback = callback is not None
        if callback:
            self.base, self.stars, self.is_const, self.name = "void", 1, False, callback[1]
            return
        words = re.findall(r"\w+|\*", text)
        self.is_const = "const" in words
        self.stars = words.count("*")
        words = [word for word in words if word not in ("*", "const", "struct")]
        self.base = words[0]
        self.name = words[1] if len(words) > 1 else ""


class Header:
    """What the public headers declare."""

    def __init__(self, text):
        self.enums, self.structs, self.handles, self.callbacks, self.functions = [], {}, [], set(), {}
        text = re.sub(r"/\*.*?\*/", "", text.replace('__attribute__((visibility("default")))', "LS_API"))
        for statement in re.findall(r"(?:[^;{}]|\{[^{}]*\})+;", text):
            self.read(re.sub(r"\s+", " ", statement.strip(" \n;")))
        self.handles = [name for name in self.handles if name not in self.structs]
        self.enum_types = {name for name, _ in self.enums}

    def read(self, text):
        enum = re.match(r"(?:typedef )?enum (\w* ?)\{(.*)\}", text)
        struct = re.match(r"(?:typedef )?struct (\w+) \{(.*)\}", text)
        handle = re.match(r"typedef struct (\w+) (\w+)$", text)
        callback = re.match(r"typedef .*?\(\*(\w+)\)\(", text)
        function = re.match(r"LS_API (.*?)(ls_\w+)\((.*)\)$", text)
        if enum:
            self.enums.append((enum[1].strip(), enumerators(enum[2])))
        elif struct:
            self.structs[struct[1]] = fields(struct[2])
        elif handle:
            if handle[2] not in self.handles:
                self.handles.append(handle[2])
        elif callback:
            self.callbacks.add(callback[1])
        elif function:
            if not function[3].endswith("..."):
                self.functions[function[2]] = (Value(function[1]), parameters(function[3]), text[len("LS_API "):])
        else:
            sys.exit(f"headers: cannot read the declaration: {text}")


def split(text):
    """The parts between commas outside parentheses."""
    return [part.strip() for part in re.findall(r"(?:[^,(]|\((?:[^()]|\([^()]*\))*\))+", text) if part.strip()]


def enumerators(text):
    found, value = [], 0
    for part in split(text):
        name, _, given = part.partition("=")
        value = int(given) if given.strip() else value
        found.append((name.strip(), value))
        value += 1
    return found


def fields(text):
    found = []
    for declaration in text.split(";"):
        parts = split(declaration)
        found += [Value(part) for part in parts[:1]]
        for part in parts[1:]:  # further names of the same type
            found.append(Value(f"{found[-1].base} {part}"))
    return found


def parameters(text):
    return [] if text.strip() == "void" else [Value(part) for part in split(text)]


def declarations():
    return subprocess.run([os.path.join(SOURCE, "scripts/abi"), "--print"], check=True, capture_output=True, text=True).stdout
