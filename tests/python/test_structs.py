#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The package's structs, constants and functions are those of attnd.h: a compiler says so."""

import ctypes
import re
import shutil
import subprocess
import tempfile
import unittest

import tap
from attnd import _lib
from attnd.plan import Plan

HEADER = tap.SRC / "client/attnd.h"


class Structs(unittest.TestCase):
    def test_layouts(self):
        cc = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang-19")
        if not cc:
            self.skipTest("no C compiler")
        lines = ['#include "attnd.h"', "#include <stdio.h>", "int main(void) {"]
        for name, struct in _lib.STRUCTS.items():
            lines.append(f'printf("{name} %zu\\n", sizeof(struct {name}));')
            for field, _ in struct._fields_:
                lines.append(
                    f'printf("{name}.{field} %zu %zu\\n", offsetof(struct {name}, {field}), '
                    f"sizeof(((struct {name} *)0)->{field}));"
                )
        for constant in ("ATTND_LAST", "ATTND_NO_KV", "ATTND_NO_OUT", "ATTND_ROW_NONCAUSAL"):
            lines.append(f'printf("{constant} %d\\n", (int){constant});')
        lines += ["return 0; }"]
        with tempfile.TemporaryDirectory() as d:
            (path := f"{d}/a.c") and open(path, "w").write("\n".join(lines))
            subprocess.run([cc, "-I", HEADER.parent, "-o", f"{d}/a", path], check=True)
            said = subprocess.run([f"{d}/a"], check=True, capture_output=True, text=True).stdout.splitlines()
        expected = []
        for name, struct in _lib.STRUCTS.items():
            expected.append(f"{name} {ctypes.sizeof(struct)}")
            for field, _ in struct._fields_:
                f = getattr(struct, field)
                expected.append(f"{name}.{field} {f.offset} {f.size}")
        expected += [
            f"ATTND_LAST {_lib.LAST}",
            f"ATTND_NO_KV {_lib.NO_KV}",
            f"ATTND_NO_OUT {_lib.NO_OUT}",
            f"ATTND_ROW_NONCAUSAL {_lib.ROW_NONCAUSAL}",
        ]
        self.assertEqual(said, expected)

    def test_fields_are_all_there(self):
        text = re.sub(r"/\*.*?\*/", "", HEADER.read_text(), flags=re.S)
        for name, struct in _lib.STRUCTS.items():
            body = re.search(rf"struct {name} {{(.*?)\n}};", text, re.S).group(1)
            declared = [
                re.sub(r"\[.*", "", word).strip(" *")
                for line in body.split(";")
                if line.strip()
                for word in re.split(r",", re.sub(r"^.*?(\*?\w+\s*(\[\w+\])?(\s*,.*)?)$", r"\1", line.strip(), flags=re.S))
            ]
            self.assertEqual(declared, [f for f, _ in struct._fields_], name)

    def test_functions_are_declared(self):
        text = HEADER.read_text()
        for name in _lib._FUNCTIONS:
            self.assertRegex(text, rf"\b{name}\(")

    def test_rows_of_numpy(self):
        self.assertEqual(Plan.ROW.itemsize, ctypes.sizeof(_lib.Row))
        for name, _ in _lib.Row._fields_:
            dtype, offset = Plan.ROW.fields[name][:2]
            self.assertEqual((dtype.itemsize, offset), (getattr(_lib.Row, name).size, getattr(_lib.Row, name).offset))
        self.assertEqual(Plan.STATUS.itemsize, ctypes.sizeof(_lib.RowStatus))


if __name__ == "__main__":
    tap.main()
