# SPDX-License-Identifier: Apache-2.0
"""Each rule of the house is found where it is broken, and a clean tree is clean."""

from __future__ import annotations

import tempfile
import unittest
import xml.etree.ElementTree
from pathlib import Path

import lint
import picture

SPDX = "// SPDX-License-Identifier: Apache-2.0\n"
HEADER = SPDX + "#pragma once\n"
CLEAN = {
    "src/ARROWS": "# who may include whom\nbase:\nstore: base\ndoor: store\nclient: base door/protocol.h\n",
    "include/cistern/status.h": HEADER + "#include <string>\n",
    "src/base/clock.h": HEADER + '#include "cistern/status.h"\n#ifdef __linux__\n#endif\n',
    "src/store/tree.h": HEADER + '#include "base/clock.h"\n',
    "src/door/protocol.h": HEADER + '#include "base/clock.h"\n',
    "src/door/door.cc": SPDX + '#include "store/tree.h"\n#include "base/clock.h"\n#include <unistd.h>\n',
    "src/client/client.cc": SPDX + '#include "door/protocol.h"\n',
}


class LintTest(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)
        self.plant(CLEAN)

    def plant(self, files: dict[str, str]) -> None:
        for path, text in files.items():
            (self.root / path).parent.mkdir(parents=True, exist_ok=True)
            (self.root / path).write_text(text)

    def found(self, path: str, text: str) -> list[str]:
        self.plant({path: text})
        return [str(f) for f in lint.check(self.root)]

    def expect(self, path: str, text: str, said: str) -> None:
        found = self.found(path, text)
        self.assertEqual([f for f in found if f.startswith(path) and said in f], found)
        self.assertEqual(len(found), 1, found)

    def test_a_clean_tree_is_clean(self) -> None:
        self.assertEqual(lint.check(self.root), [])

    def test_an_include_without_arrow(self) -> None:
        self.expect("src/base/up.cc", SPDX + '#include "store/tree.h"\n', "up.cc:2: no arrow")

    def test_an_arrow_to_one_header_allows_that_header_only(self) -> None:
        self.plant({"src/door/door.h": HEADER})
        self.expect("src/client/more.cc", SPDX + '#include "door/door.h"\n', "no arrow")

    def test_a_header_with_an_arrow_of_its_own_smuggles_nothing(self) -> None:
        self.expect("src/door/protocol.h", HEADER + '#include "store/tree.h"\n', "may not include store/tree.h")

    def test_a_folder_without_line(self) -> None:
        self.expect("src/mesh/a.cc", SPDX, "no line for the folder 'mesh'")

    def test_a_table_with_a_cycle(self) -> None:
        found = self.found("src/ARROWS", "base: store\nstore: base\ndoor: store\nclient: base door/protocol.h\n")
        self.assertTrue(any(f.startswith("src/ARROWS:1: base stands on 'store'") for f in found), found)

    def test_a_public_header_with_anything_but_std(self) -> None:
        self.expect("include/cistern/store.h", HEADER + "#include <boost/json.hpp>\n", "boost/json.hpp")
        self.expect("include/cistern/store.h", HEADER + '#include "base/clock.h"\n', "base/clock.h")

    def test_a_header_that_is_not_there(self) -> None:
        self.expect("src/store/a.cc", SPDX + '#include "store/nothing.h"\n', 'there is no "store/nothing.h"')
        self.plant({"src/store/a.cc": SPDX, "bench/fill.h": HEADER})
        self.assertEqual(self.found("apps/a.cc", SPDX + '#include "fill.h"\n'), [])

    def test_a_missing_licence_line(self) -> None:
        self.expect("src/store/a.cc", "int a;\n", "a.cc:1: the first line")
        self.plant({"src/store/a.cc": SPDX})
        self.expect("tests/a.py", "#!/usr/bin/env python3\nimport os\n", "a.py:2: the first line")

    def test_a_header_without_pragma_once(self) -> None:
        self.expect("src/store/a.h", SPDX, "#pragma once")

    def test_a_condition_outside_base(self) -> None:
        self.expect("src/store/a.cc", SPDX + "// #if in a comment\n#  ifdef USE_X\n#endif\n", "a.cc:3: #  ifdef")

    def test_a_test_that_sleeps(self) -> None:
        sleep = "void F() { std::this_thread::sleep_for(x); }\n"
        self.expect("src/store/a_test.cc", SPDX + sleep, "sleep_for")
        self.plant({"src/store/a_test.cc": SPDX})
        self.expect("tests/storm/a.cc", SPDX + sleep, "sleep_for")
        self.plant({"tests/storm/a.cc": SPDX})
        self.assertEqual(self.found("apps/a.cc", SPDX + sleep), [])

    def test_costly_headers_stay_in_one_source(self) -> None:
        self.plant({"src/base/log.cc": SPDX + "#include <spdlog/spdlog.h>\n"})
        self.expect("src/store/a.cc", SPDX + "#include <spdlog/sinks/sink.h>\n", "already included in src/base/log.cc")
        self.plant({"src/store/a.cc": SPDX})
        self.expect("apps/flags.h", HEADER + "#include <CLI/CLI.hpp>\n", "never in a header")

    def test_an_include_cycle(self) -> None:
        self.plant({"src/store/a.h": HEADER + '#include "store/b.h"\n'})
        found = self.found("src/store/b.h", HEADER + '#include "store/a.h"\n')
        self.assertEqual(len(found), 1, found)
        self.assertIn("include cycle: src/store/a.h -> src/store/b.h -> src/store/a.h", found[0])

    def test_a_long_file_is_said_and_a_longer_one_stops(self) -> None:
        self.expect("src/store/a.cc", SPDX + "int a;\n" * 700, "warning: 701 lines")
        self.expect("src/store/a.cc", SPDX + "int a;\n" * 1500, "a.cc:1: 1501 lines")

    def test_a_long_function_is_said_and_a_longer_one_stops(self) -> None:
        body = "namespace a {{\nTask<int> Core::Put(int a) const {{\n  if (a) {{\n{}  }}\n}}\n}}  // a\nint x;\n"
        self.expect("src/store/a.cc", SPDX + body.format("    a();\n" * 80), "a.cc:3: warning: Core::Put: 84 lines")
        self.expect("src/store/a.cc", SPDX + body.format("    a();\n" * 150), "a.cc:3: Core::Put: 154 lines")

    def test_where_functions_begin_and_end(self) -> None:
        code = lint.blank(
            'struct A final : B {\n  A(int a) : a_{a}, b_(b) {\n    c();\n  }\n  int b{3};\n  const char* s = "{";\n'
            "  bool ok() const { return a_ == '{'; }\n};\nvoid F(\n    int a) {\n  auto g = [&](int b) {\n  };\n}\n"
            'char j[] = R"x({{{)x";\nint n = 1\'000;\nbool operator==(A a, A b) {\n}\n'
            'extern "C" int Run(int a) {\n}\nextern "C" {\nint Other() {\n}\n}\n')
        self.assertEqual(list(lint.cpp_functions(code)),
                         [("A", 2, 4), ("ok", 7, 7), ("F", 9, 13), ("operator==", 16, 17),
                          ("Run", 18, 19), ("Other", 21, 22)])

    def test_the_picture_is_svg_with_every_folder(self) -> None:
        tree = lint.read_tree(self.root)
        drawn = picture.draw(tree.arrows.direct, tree.arrows.headers, {"base", "store", "door", "client"},
                             lint.folder_includes(tree))
        texts = [e.text for e in xml.etree.ElementTree.fromstring(drawn).iter("{http://www.w3.org/2000/svg}text")]
        self.assertTrue({"base", "store", "door", "client"} <= set(texts), texts)


if __name__ == "__main__":
    unittest.main()
