"""Which files are read as what, and which are left out of a folder and why."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase

SUPPORTED = (
    "PDF, Word, PowerPoint, Excel, CSV, HTML, EPUB, OpenDocument, RTF, e-mail (.eml), notebooks, text in any encoding, "
    "Markdown and source code, folders of them, and zip or tar archives"
)


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


MARKDOWN = frozenset({".md", ".markdown", ".mdx", ".mkd"})
CODE = _words("""
    .py .pyi .pyx .js .mjs .cjs .jsx .ts .tsx .vue .svelte .c .h .cc .cpp .cxx .hh .hpp .hxx .cu .cuh .cl .m
    .mm .rs .go .java .kt .kts .scala .clj .cljs .groovy .gradle .cs .fs .vb .swift .rb .php .pl .pm .lua .r .jl .hs
    .ml .mli .ex .exs .erl .elm .nim .zig .d .dart .f .f90 .f95 .for .pas .adb .ads .asm .s .v .sv .vhd .vhdl .sh
    .bash .zsh .fish .ps1 .bat .cmd .sql .html .htm .css .scss .sass .less .xml .xsd .xsl .json .jsonc .json5 .yaml
    .yml .toml .ini .cfg .conf .cmake .mk .proto .tf .nix .dockerfile .graphql .tex .sty .cls .bib .el .lisp .scm
    .rkt .tcl .awk .sed .diff .patch .gitignore .editorconfig
""")
CODE_NAMES = frozenset(
    {"makefile", "dockerfile", "cmakelists.txt", "rakefile", "gemfile", "justfile", "jenkinsfile", "vagrantfile"}
)

# (first bytes, what the file is): formats that people drop and that we do not read
_SIGNATURES = (
    (b"PK\x03\x04", "an archive"),
    (b"PK\x05\x06", "an empty archive"),
    (b"\xd0\xcf\x11\xe0", "an old Office document"),
    (b"\x89PNG", "a PNG picture"),
    (b"\xff\xd8\xff", "a JPEG picture"),
    (b"GIF8", "a GIF picture"),
    (b"II*\x00", "a TIFF picture"),
    (b"MM\x00*", "a TIFF picture"),
    (b"\x1f\x8b", "a gzip archive"),
    (b"BZh", "a bzip2 archive"),
    (b"\xfd7zXZ", "an xz archive"),
    (b"7z\xbc\xaf", "a 7z archive"),
    (b"\x28\xb5\x2f\xfd", "a Zstandard archive"),
    (b"Rar!", "a RAR archive"),
    (b"\x7fELF", "a program"),
    (b"MZ", "a program"),
    (b"SQLite format 3\x00", "a database"),
    (b"GGUF", "a model file"),
    (b"%!PS", "a PostScript file"),
)
_HINTS = {
    "an archive": "Open it by itself.",
    "an old Office document": "Save it as .docx, .xlsx, .pptx or PDF and open that.",
    **dict.fromkeys(
        ("a gzip archive", "a bzip2 archive", "an xz archive", "a 7z archive", "a RAR archive", "a Zstandard archive"),
        "Unpack it and open what was in it; zip, tar, tar.gz, tar.bz2 and tar.xz can be opened as they are.",
    ),
    "a PostScript file": "Convert it to PDF (ps2pdf) and open that.",
    "a model file": "Choose it as a model (--model), not as a document.",
}


def looks_like_pdf(name: str, head: bytes) -> bool:
    """By the header; PDF readers accept up to about a kilobyte before it, we do so only if the name says PDF too."""
    return head.startswith(b"%PDF-") or (name.lower().endswith(".pdf") and b"%PDF-" in head[:1024])


def signature(head: bytes) -> str:
    """What a file that we do not read is ("a PNG picture"), or "" for one that may be text."""
    for first, what in _SIGNATURES:
        # two-letter marks begin ordinary words too: ask for a zero byte near by
        if head.startswith(first) and (len(first) > 3 or b"\0" in head[:256]):
            return what
    return ""


def signature_hint(what: str) -> str:
    return _HINTS.get(what, f"Supported are {SUPPORTED}.")


def text_kind(name: str) -> str:
    """code, markdown or text, by the file's name."""
    name = name.lower()
    suffix = "." + name.rpartition(".")[2] if "." in name else ""
    if suffix in MARKDOWN:
        return "markdown"
    if suffix in CODE or name in CODE_NAMES:
        return "code"
    return "text"


_SKIPPED_FOLDERS = {
    **dict.fromkeys((".git", ".hg", ".svn", ".bzr", "cvs", "_darcs"), "version control data"),
    **dict.fromkeys(("node_modules", "bower_components", "jspm_packages"), "installed packages"),
    **dict.fromkeys(("vendor", "vendored", "third_party", "thirdparty", "3rdparty"), "vendored code of others"),
    **dict.fromkeys(
        (".venv", "venv", "site-packages", "__pypackages__", ".eggs", ".tox", ".nox"), "an installed environment"
    ),
    **dict.fromkeys(
        ("__pycache__", ".mypy_cache", ".pytest_cache", ".ruff_cache", ".hypothesis", ".cache", ".gradle"), "a cache"
    ),
    **dict.fromkeys(
        (".next", ".nuxt", ".svelte-kit", ".parcel-cache", ".turbo", ".ipynb_checkpoints"), "generated files"
    ),
    **dict.fromkeys((".terraform", "pods", "carthage", "deriveddata"), "installed packages"),
    **dict.fromkeys((".idea", ".vs", ".vscode"), "settings of an editor"),
    "__macosx": "a system's own files",
    **dict.fromkeys((".ssh", ".gnupg", ".aws", ".azure", ".kube", ".docker"), "may hold secrets"),
}
_LOCK_FILES = _words("""
    package-lock.json npm-shrinkwrap.json yarn.lock pnpm-lock.yaml bun.lock bun.lockb poetry.lock uv.lock pdm.lock
    pixi.lock pipfile.lock conda-lock.yml cargo.lock gemfile.lock composer.lock go.sum mix.lock pubspec.lock
    podfile.lock flake.lock packages.lock.json gradle.lockfile deno.lock .terraform.lock.hcl
""")
_SECRETS = _words("""
    .env .env.* *.env .envrc *.pem *.key *.p12 *.pfx *.jks *.keystore *.kdbx *.asc *.gpg *.ppk *.ovpn .netrc _netrc
    .npmrc .pypirc .git-credentials .htpasswd .pgpass .my.cnf credentials credentials.json client_secret*.json
    service-account*.json secrets.* *.tfstate *.tfstate.* *.tfvars id_rsa* id_dsa* id_ecdsa* id_ed25519* .dockercfg
    .boto
""")
_NOT_SECRET = (".env.example", ".env.sample", ".env.template", ".env.dist", "secrets.example.*")
_KEY_FILE = re.compile(r"id_[a-z0-9]+(\.pub)?")
_GENERATED = _words("""
    *.min.js *.min.css *.min.mjs *.bundle.js *.chunk.js *.js.map *.css.map *_pb2.py *_pb2_grpc.py *.pb.go *.pb.cc
    *.pb.h *.g.dart *.freezed.dart *.designer.cs *.generated.*
""")
_PRIVATE_KEY = re.compile(rb"-----BEGIN [A-Z0-9 ]*PRIVATE KEY( BLOCK)?-----")
_GENERATED_MARK = re.compile(rb"@generated\b|Code generated by .{1,200} DO NOT EDIT|<auto-generated")


def skipped_folder(name: str) -> str:
    """Why a folder of this name is not walked, or ""."""
    low = name.lower()
    return _SKIPPED_FOLDERS.get(low, "generated files" if low.endswith((".egg-info", ".dist-info")) else "")


def skipped_name(name: str) -> str:
    """Why a file of this name is not read, or ""; secrets first, so that they are never opened."""
    low = name.lower()
    if not any(fnmatchcase(low, pattern) for pattern in _NOT_SECRET) and (
        any(fnmatchcase(low, pattern) for pattern in _SECRETS) or _KEY_FILE.fullmatch(low)
    ):
        return "may hold secrets"
    if low in _LOCK_FILES:
        return "a lock file"
    if low in (".ds_store", "thumbs.db", "desktop.ini") or low.startswith(("._", "~$")):
        return "a system's own file"
    if any(fnmatchcase(low, pattern) for pattern in _GENERATED):
        return "generated or minified"
    return ""


def skipped_content(name: str, data: bytes) -> str:
    """Why a file with these bytes is left out of a folder, or ""."""
    if not data.strip():
        return "empty"
    if _PRIVATE_KEY.search(data):
        return "may hold secrets"
    if what := signature(data[:512]):
        return what
    if _GENERATED_MARK.search(data[:2048]):
        return "generated or minified"
    if name.lower().endswith((".js", ".mjs", ".css")) and max(map(len, data.split(b"\n"))) > 5_000:
        return "generated or minified"
    return ""
