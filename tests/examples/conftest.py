"""The examples as modules, and a corpus of files of many kinds."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import marshal
import os
import pickle
import sqlite3
import struct
import sys
import tarfile
import wave
import zipfile
import zlib
from importlib.util import MAGIC_NUMBER
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

TEXTS: dict[str, str] = {
    "main.c": "#include <stdio.h>\n\nint main(int argc, char **argv) {\n"
    '    printf("%d\\n", argc);\n'
    "    for (int i = 0; i < argc; i++) puts(argv[i]);\n    return 0;\n}\n",
    "queue.cpp": "#include <vector>\n#include <iostream>\ntemplate <typename T> class Queue {\n"
    " public:\n  void push(const T& v) { items_.push_back(v); }\n private:\n"
    "  std::vector<T> items_;\n};\nint main() { std::cout << 1 << std::endl; }\n",
    "Main.java": "package org.example;\n\nimport java.util.List;\n\npublic class Main {\n"
    "    public static void main(String[] args) {\n        System.out.println(List.of(args));\n"
    "    }\n}\n",
    "lib.rs": "use std::collections::HashMap;\n\n"
    "pub fn count(words: &[&str]) -> HashMap<String, usize> {\n"
    "    let mut m = HashMap::new();\n    for w in words {\n"
    "        *m.entry(w.to_string()).or_insert(0) += 1;\n    }\n    m\n}\n",
    "main.go": 'package main\n\nimport (\n\t"fmt"\n\t"os"\n)\n\nfunc main() {\n'
    "\tfor i, a := range os.Args {\n\t\tfmt.Println(i, a)\n\t}\n}\n",
    "app.js": "const express = require('express');\nconst app = express();\n"
    "app.get('/', (req, res) => { res.send(`hello ${req.query.name}`); });\n"
    "module.exports = app;\n",
    "types.ts": "export interface User { id: number; name?: string }\n"
    "export function greet(u: User): string {\n  return `hi ${u.name ?? 'you'}`;\n}\n",
    "tool.rb": "require 'json'\n\nclass Tool\n  attr_reader :name\n  def initialize(name)\n"
    "    @name = name\n  end\n\n  def run\n    puts JSON.dump({ name: @name })\n  end\nend\n",
    "index.php": "<?php\nnamespace App;\nfunction add(int $a, int $b): int { return $a + $b; }\n"
    "echo add(1, 2) . PHP_EOL;\nforeach ($_GET as $k => $v) { echo htmlspecialchars($v); }\n",
    "build.sh": "#!/bin/bash\nset -euo pipefail\nfor f in *.c; do\n"
    '  gcc -c "$f" -o "${f%.c}.o" || exit 1\ndone\necho "done"\n',
    "run.bat": "@echo off\r\nsetlocal\r\nset NAME=%1\r\nif not defined NAME goto :end\r\n"
    "echo Hello %NAME%\r\n:end\r\nendlocal\r\n",
    "module.py": "from __future__ import annotations\n\nimport sys\n\n\ndef main() -> int:\n"
    "    for line in sys.stdin:\n        print(line.strip())\n    return 0\n\n\n"
    'if __name__ == "__main__":\n    raise SystemExit(main())\n',
    "script.lua": "local M = {}\nfunction M.fib(n)\n  if n < 2 then return n end\n"
    "  return M.fib(n - 1) + M.fib(n - 2)\nend\nprint(M.fib(20))\nreturn M\n",
    "stats.r": "x <- c(1, 2, 3, 4)\ny <- x^2\nmodel <- lm(y ~ x)\nsummary(model)\nplot(x, y)\n",
    "parse.pl": "#!/usr/bin/perl\nuse strict;\nuse warnings;\nmy %count;\nwhile (<STDIN>) {\n"
    "  chomp;\n  $count{$_}++ for split /\\s+/;\n}\n"
    'print "$_ $count{$_}\\n" for sort keys %count;\n',
    "Main.hs": "module Main where\n\nimport qualified Data.Map as M\n\nmain :: IO ()\n"
    "main = interact $ \\s -> unlines [w ++ show n | (w, n) <- M.toList (count (words s))]\n"
    "  where count = foldr (\\w -> M.insertWith (+) w (1 :: Int)) M.empty\n",
    "App.scala": "object App {\n  case class Point(x: Int, y: Int)\n"
    "  def main(args: Array[String]): Unit = {\n    val ps = List(Point(1, 2))\n"
    "    ps.foreach(p => println(p.x))\n  }\n}\n",
    "Main.kt": "package demo\n\ndata class Point(val x: Int, val y: Int)\n\n"
    'fun main() {\n    val p = Point(1, 2)\n    println("${p.x} ${p.y}")\n}\n',
    "view.swift": "import Foundation\n\nstruct Point: Codable {\n    let x: Int\n}\n"
    "func area(_ p: Point) -> Int {\n    guard p.x > 0 else { return 0 }\n    return p.x\n}\n",
    "query.sql": "CREATE TABLE users (id INTEGER PRIMARY KEY, name TEXT NOT NULL);\n"
    "INSERT INTO users (name) VALUES ('ada'), ('alan');\n"
    "SELECT name, COUNT(*) FROM users GROUP BY name ORDER BY name;\n",
    "page.html": "<!DOCTYPE html>\n<html lang='en'>\n<head><title>Page</title></head>\n"
    "<body><h1>Hello</h1><p>text</p></body>\n</html>\n",
    "style.css": "body { margin: 0; font-family: sans-serif; }\n.box > a:hover { color: #f00; }\n"
    "@media (max-width: 600px) { .box { display: none; } }\n",
    "data.xml": '<?xml version="1.0" encoding="UTF-8"?>\n<items>\n  <item id="1">one</item>\n'
    '  <item id="2">two</item>\n</items>\n',
    "draw.svg": '<svg xmlns="http://www.w3.org/2000/svg" width="10" height="10">'
    '<rect x="1" y="1" width="8" height="8" fill="red"/></svg>\n',
    "config.yaml": "name: plait\nversion: 1\njobs:\n"
    "  - name: test\n    steps:\n      - run: make\n",
    "project.toml": '[project]\nname = "demo"\nversion = "0.1"\ndependencies = ["numpy>=2"]\n',
    "setup.ini": "[section]\nkey = value\nother = 1\n\n[next]\npath = /usr/lib\n",
    "table.csv": "id,name,price\n" + "".join(f"{i},item{i},{i * 1.5}\n" for i in range(40)),
    "table.tsv": "id\tname\tprice\n" + "".join(f"{i}\titem{i}\t{i * 1.5}\n" for i in range(40)),
    "Makefile": "CC = gcc\nOBJS = a.o b.o\n\nall: $(OBJS)\n\t$(CC) -o prog $(OBJS)\n\n"
    ".PHONY: clean\nclean:\n\trm -f $(OBJS) prog\n",
    "Dockerfile": "FROM python:3.11-slim\nWORKDIR /app\nCOPY . /app\nRUN pip install -r req.txt\n"
    'CMD ["python", "main.py"]\n',
    "README.md": "# Title\n\nSome *text* with [a link](http://example.org).\n\n- one\n- two\n\n"
    "```python\nprint(1)\n```\n",
    "guide.rst": "Guide\n=====\n\n"
    ".. code-block:: python\n\n   print(1)\n\n:ref:`there` and ``this``.\n",
    "paper.tex": "\\documentclass{article}\n\\begin{document}\n\\section{One}\nText $x^2$.\n"
    "\\end{document}\n",
    "change.diff": "--- a/x.py\n+++ b/x.py\n"
    "@@ -1,3 +1,3 @@\n import os\n-print(1)\n+print(2)\n x = 1\n",
    "CMakeLists.txt": "cmake_minimum_required(VERSION 3.10)\nproject(demo C)\n"
    "add_executable(demo main.c)\ntarget_link_libraries(demo m)\n",
    "boot.asm": "section .text\nglobal _start\n"
    "_start:\n    mov eax, 1\n    xor ebx, ebx\n    int 0x80\n",
    "mail.eml": "From: a@example.org\r\nTo: b@example.org\r\nSubject: hi\r\n"
    "Date: Mon, 1 Jan 2024 00:00:00 +0000\r\n\r\nHello there.\r\n",
    "cert.pem": "-----BEGIN CERTIFICATE-----\n"
    + "MIIBszCCARygAwIBAgIJAK\n" * 12
    + "-----END CERTIFICATE-----\n",
    "subs.srt": "1\n00:00:01,000 --> 00:00:02,000\nHello\n\n"
    "2\n00:00:03,000 --> 00:00:04,000\nBye\n",
    "prose.txt": "It was a bright cold day, and the clocks were striking. " * 30,
    "tiny.txt": "hi",
    "seven.txt": "seven b",
    "eight.txt": "eight by",
    "spaced.txt": "   \n\t  ab \n  ",
    "blank.txt": " \n\t\r\n" * 60,
    "blank_long.txt": " \n" * 6000,
    "padded.py": " " * 5000 + "import os\nprint(os.name)\n" + "\n" * 5000,
    "umlaut.txt": "Übermäßig größere Öfen, naïve façade, 日本語のテキスト。\n" * 20,
}


def _chunk(kind: bytes, body: bytes) -> bytes:
    check = struct.pack(">I", zlib.crc32(kind + body))
    return struct.pack(">I", len(body)) + kind + body + check


def _png() -> bytes:
    header = struct.pack(">IIBBBBB", 8, 8, 8, 2, 0, 0, 0)
    rows = b"".join(b"\0" + bytes(range(24)) for _ in range(8))
    body = _chunk(b"IHDR", header) + _chunk(b"IDAT", zlib.compress(rows)) + _chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def _bmp() -> bytes:
    pixels = bytes(range(192))
    header = struct.pack("<IiiHHIIiiII", 40, 8, 8, 1, 24, 0, len(pixels), 2835, 2835, 0, 0)
    return b"BM" + struct.pack("<IHHI", 54 + len(pixels), 0, 0, 54) + header + pixels


def _zip(names: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, body in names.items():
            archive.writestr(zipfile.ZipInfo(name), body)
    return file.getvalue()


def _tar() -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for name in ("a.txt", "b.txt"):
            info = tarfile.TarInfo(name)
            info.size = 300
            archive.addfile(info, io.BytesIO(b"words " * 50))
    return file.getvalue()


def _wav() -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(8000)
        sound.writeframes((np.sin(np.arange(4000)) * 9000).astype("<i2").tobytes())
    return file.getvalue()


def _npy() -> bytes:
    file = io.BytesIO()
    np.save(file, np.arange(400.0))
    return file.getvalue()


def _npz() -> bytes:
    file = io.BytesIO()
    np.savez(file, x=np.arange(400.0), y=np.ones((3, 3)))
    return file.getvalue()


def _binaries() -> dict[str, bytes]:
    noise = np.random.default_rng(0).bytes(6000)
    code = marshal.dumps(compile("x = [i * i for i in range(9)]", "x.py", "exec"))
    words = ("The quick brown fox. " * 80).encode()
    return {
        "empty": b"",
        "nul": b"\0",
        "tiny.bin": b"\xff\xfe\xfd",
        "seven.bin": b"\x80" * 7,
        "eight.bin": b"\x80" * 8,
        "blank.bin": b" " * 40 + b"\xff" + b"\n" * 40,
        "cut.txt": b"\n" * 4095 + "é".encode() + b"words after the first block\n" * 9,
        "noise.bin": noise,
        "zeros.bin": bytes(9000),
        "latin1.txt": ("Größe, Wärme, Übung: naïve façade. " * 20).encode("latin-1"),
        "utf16.txt": ("Wide words in a row. " * 40).encode("utf-16"),
        "bom.txt": b"\xef\xbb\xbf" + words,
        "image.png": _png(),
        "image.bmp": _bmp(),
        "image.gif": b"GIF89a\x08\x00\x08\x00\x80\x00\x00\xff\xff\xff\x00\x00\x00,\x00\x00\x00\x00"
        b"\x08\x00\x08\x00\x00\x02\x07\x84\x8f\xa9\xcb\xed\x0f\x63;",
        "image.jpeg": b"\xff\xd8\xff\xe0\x00\x10JFIF\x00\x01\x01\x00\x00H\x00H\x00\x00\xff\xdb\x00C"
        + noise[:600]
        + b"\xff\xd9",
        "image.webp": b"RIFF" + struct.pack("<I", 1000) + b"WEBPVP8 " + noise[:992],
        "image.tiff": b"II*\x00\x08\x00\x00\x00" + noise[:400],
        "icon.ico": b"\0\0\x01\0\x01\0\x10\x10\0\0\x01\0\x20\0"
        + struct.pack("<II", 900, 22)
        + noise[:900],
        "words.zip": _zip({"a.txt": words, "b/c.txt": words}),
        "lib.jar": _zip({"META-INF/MANIFEST.MF": b"Manifest-Version: 1.0\r\n", "A.class": noise}),
        "words.gz": gzip.compress(words, mtime=0),
        "words.bz2": bz2.compress(words),
        "words.xz": lzma.compress(words),
        "words.zlib": zlib.compress(words),
        "words.tar": _tar(),
        "paper.pdf": b"%PDF-1.4\n1 0 obj\n<< /Type /Catalog /Pages 2 0 R >>\nendobj\n"
        b"2 0 obj\n<< /Type /Pages /Count 0 /Kids [] >>\nendobj\nxref\n0 3\n"
        b"trailer\n<< /Root 1 0 R /Size 3 >>\nstartxref\n120\n%%EOF\n",
        "sound.wav": _wav(),
        "old.pyc": MAGIC_NUMBER + bytes(12) + code,
        "half.elf": Path(sys.executable).resolve().read_bytes()[:3000],
        "object.pickle": pickle.dumps({"a": list(range(200)), "b": words.decode()}),
        "array.npy": _npy(),
        "arrays.npz": _npz(),
        "Main.class": b"\xca\xfe\xba\xbe\0\0\0\x34\0\x1d\x0a\0\x06\0\x0f" + noise[:500],
        "code.wasm": b"\0asm\x01\0\0\0\x01\x07\x01\x60\x02\x7f\x7f\x01\x7f\x03\x02\x01\0"
        + noise[:200],
        "list.json": json.dumps([{"id": i, "name": f"n{i}"} for i in range(50)]).encode(),
        "lines.jsonl": b"".join(json.dumps({"id": i}).encode() + b"\n" for i in range(50)),
        "note.ipynb": json.dumps(
            {
                "cells": [{"cell_type": "code", "source": ["print(1)"], "outputs": []}],
                "metadata": {"kernelspec": {"name": "python3"}},
                "nbformat": 4,
                "nbformat_minor": 5,
            }
        ).encode(),
    }


def _database(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, name TEXT)")
    connection.execute("INSERT INTO t (name) VALUES ('one')")
    connection.commit()
    connection.close()


def _from_python() -> list[Path]:
    library = Path(os.__file__).parent
    names = ("os.py", "argparse.py", "this.py", "LICENSE.txt", "json/decoder.py", "abc.py")
    named = [library / name for name in names if (library / name).is_file()]
    compiled = sorted(library.glob("__pycache__/*.pyc"))[:5]
    shared = sorted(library.glob("lib-dynload/*.so"))[:5]
    return [*named, *compiled, *shared, Path(sys.executable).resolve()]


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Files of many kinds, written here and found in the Python installation."""
    folder = tmp_path_factory.mktemp("corpus")
    for name, text in TEXTS.items():
        (folder / name).write_bytes(text.encode())
    for name, body in _binaries().items():
        (folder / name).write_bytes(body)
    _database(folder / "data.sqlite")
    return [*sorted(folder.iterdir()), *_from_python()]
