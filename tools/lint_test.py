# SPDX-License-Identifier: Apache-2.0
"""Each rule of the house is found where it is broken, and a clean tree is clean."""

from __future__ import annotations

import tempfile
import unittest
import xml.etree.ElementTree
from pathlib import Path

import lint

SPDX = "// SPDX-License-Identifier: Apache-2.0\n"
HEADER = SPDX + "#pragma once\n"
PY = "# SPDX-License-Identifier: Apache-2.0\n"
CLEAN = {
    "src/ARROWS": "# who may include whom\nbase:\nwire: base\nstore: base\ndoor: store wire\nclient: wire\n",
    "include/cistern/status.h": HEADER + "#include <string>\n",
    "src/base/clock.h": HEADER + '#include "cistern/status.h"\n#ifdef __linux__\n#endif\n',
    "src/store/tree.h": HEADER + '#include "base/clock.h"\n',
    "src/wire/protocol.h": HEADER + '#include "base/clock.h"\n',
    "src/door/door.cc": SPDX + '#include "store/tree.h"\n#include "base/clock.h"\n#include <unistd.h>\n',
    "src/client/client.cc": SPDX + '#include "wire/protocol.h"\n',
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

    def test_a_name_of_two_types(self) -> None:
        def within(scope: str, text: str) -> str:
            return f"{SPDX}namespace {scope} {{\n{text}\n}}\n"

        self.plant({"bench/a.h": HEADER + within("cistern", "class Plot;\nstruct Samples {\n  int a;\n};")})
        self.expect("bench/b.cc", within("cistern", "class Samples final : Base {\n};"), "b.cc:3: cistern::Samples is")
        same = "struct Samples {};"
        for other in (within("cistern", f"namespace {{\n{same}\n}}"), within("cistern::a", same),
                      within("cistern", f"struct B {{\n  {same}\n}};"), within("cistern", "class Samples;")):
            self.assertEqual(self.found("bench/b.cc", other), [])

    def test_an_include_without_arrow(self) -> None:
        self.expect("src/base/up.cc", SPDX + '#include "store/tree.h"\n', "up.cc:2: no arrow")

    def test_an_arrow_does_not_lead_up_again(self) -> None:
        self.plant({"src/door/door.h": HEADER})
        self.expect("src/client/more.cc", SPDX + '#include "door/door.h"\n', "no arrow")

    def test_a_folder_without_line(self) -> None:
        self.expect("src/mesh/a.cc", SPDX, "no line for the folder 'mesh'")

    def test_a_table_with_a_cycle(self) -> None:
        found = self.found("src/ARROWS", "base: store\nstore: base\n")
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

    def test_a_condition_that_asks_what_it_awaits(self) -> None:
        for text in ("if (!(co_await x.Wait(\n at())).ok()) return;", "while (b && (co_await x)->ok()) {}"):
            self.expect("src/store/a.cc", SPDX + text, "a.cc:2: a condition that asks what it awaits")
        for text in ("if (const Status s = co_await x.Wait(); !s.ok()) return;", "if (!co_await Keep()) return;",
                     "return (co_await x).ok();", "if (a) {}\n(co_await x).Go();"):
            self.assertEqual(self.found("src/store/a.cc", SPDX + text), [])

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

    def test_import_cycle_through_functions_and_type_checking(self) -> None:
        typed = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .plan import Plan\n"
        self.plant({
            "python/cistern/__init__.py": PY + "from .store import Store\n",
            "python/cistern/store.py": PY + "from . import _native\nimport json\n",
            "python/cistern/_native.pyi": PY + "from .store import Store\n",
            "python/cistern/engine/plan.py": PY + "from .. import Store\nfrom . import orders\n",
            "tests/engine/harness.py": PY + "from cistern.engine import plan\n",
            "tests/engine/test_a.py": PY + "from harness import Node\n",
        })
        self.assertEqual(self.found("python/cistern/engine/orders.py", PY), [])
        for text in (typed, "def f():\n    from cistern.engine.plan import Plan\n", "import cistern.engine.plan\n"):
            found = self.found("python/cistern/engine/orders.py", PY + text)
            self.assertEqual(len(found), 1, found)
            self.assertIn("import cycle: python/cistern/engine/orders.py -> python/cistern/engine/plan.py", found[0])
        self.plant({"python/cistern/engine/orders.py": PY})
        found = self.found("tests/engine/harness.py", PY + "import test_a\n")
        self.assertEqual(len(found), 1, found)
        self.assertIn("tests/engine/harness.py -> tests/engine/test_a.py", found[0])

    def test_engine_importing_vllm_in_any_form(self) -> None:
        self.plant({"python/cistern/vllm/__init__.py": PY, "python/cistern/sglang/__init__.py": PY,
                    "python/cistern/engine/__init__.py": PY, "python/cistern/__init__.py": PY})
        plan, scheduler = "python/cistern/engine/plan.py", "python/cistern/vllm/scheduler.py"
        for text in ("import vllm\n", "from vllm.config import VllmConfig\n", "from ..vllm import versions\n",
                     "from .. import vllm\n", "import cistern.vllm.versions\n", "def f():\n    import vllm.v1\n"):
            self.expect(plan, PY + text, "python/cistern/engine must not import")
        self.plant({plan: PY + "from .. import Store\nimport torch\n"})
        self.assertEqual(self.found(scheduler, PY + "import vllm\nfrom ..engine.plan import Plan\n"), [])
        self.expect(scheduler, PY + "from ..sglang import radix\n", "must not import cistern.sglang.radix")
        self.plant({scheduler: PY})
        self.expect("python/cistern/store.py", PY + "from .engine import plan\n", "must not import cistern.engine.plan")

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

    def test_a_namespace_of_another_folder(self) -> None:
        self.expect("src/store/trees.cc", SPDX + "namespace cistern {\nint Count() {\n}\n}\n",
                    "trees.cc:2: namespace cistern: store defines what is in cistern::store")

    def test_a_namespace_of_another_folder_may_declare(self) -> None:
        declared = "namespace cistern::base {\nclass Clock;\nstruct Time;\n}\n"
        own = "namespace cistern::store {\nint Count() {\n}\n}\n"
        self.assertEqual(self.found("src/store/trees.cc", SPDX + declared + own), [])

    def test_rules_naming_a_test_that_is_not_there(self) -> None:
        test = "TEST_F(StoreTest, R1Torn) {\n}\nTEST(StoreTest,\n     Other) {\n}\n"
        self.plant({
            "src/store/store_test.cc": SPDX + test,
            "src/store/ring_fuzz.cc": SPDX,
            "tests/whole/CMakeLists.txt": PY + "gtest_discover_tests(a TEST_PREFIX whole/)\n"
                                               "add_test(NAME kill/${loop} a)\n",
            "tests/whole/a_test.cc": SPDX + "TEST_P(Whole, Sound) {\n}\n",
            "tests/engine/test_a.py": PY + "def test_b():\n    pass\n",
            "tests/storm/mutants/no-fence.patch": "a patch\n",
        })
        rules = "# Rules\n- a line of `no` test\n" + "".join(f"- `{name}`, why\n" for name in (
            "fuzz/ring_fuzz", "kill/epoll", "mutants/no-fence", "store/StoreTest.Other", "store/StoreTest.R1Torn",
            "tests/engine/test_a.py::test_b", "whole/Whole.Sound"))
        self.assertEqual(self.found("docs/rules.md", rules), [])
        for name in ("store/StoreTest.R1Gone", "whole/StoreTest.R1Torn", "mutants/gone", "fuzz/gone", "kill",
                     "tests/engine/test_a.py::test_c"):
            self.expect("docs/rules.md", rules + f"\n- `{name}`\n", f"rules.md:11: there is no test {name}")
        self.expect("docs/rules.md", rules + "- `store/StoreTest.Other`\n", "stands behind whole/Whole.Sound")

    def test_a_test_of_a_rule_that_rules_do_not_list(self) -> None:
        self.plant({"docs/rules.md": "# Rules\n"})
        self.expect("src/store/a_test.cc", SPDX + "TEST(A, R10Gone) {\n}\n", "a_test.cc:2: warning: store/A.R10Gone")
        self.assertEqual(self.found("src/store/a_test.cc", SPDX + "TEST(A, Rest) {\n}\n"), [])
        self.expect("src/store/a_test.cc", SPDX + "TEST(A, Promise1Gone) {\n}\n", "named P and its number")

    def test_pages_that_link_to_or_name_what_is_not_there(self) -> None:
        self.plant({"src/store/a_test.cc": SPDX + "TEST(A, Rest) {\n}\n", "docs/b.md": "# What it `is`, now\n"})
        sound = "# A\n[a](#a) [b](b.md) [c](b.md#what-it-is-now) [d](https://a/b#c) [e](../src/ARROWS) `store/A.Rest`\n"
        self.assertEqual(self.found("docs/a.md", sound), [])
        for text, said in (("[a](c.md)", "c.md"), ("[a](b.md#a)", "b.md#a"), ("[a](#b)", "#b")):
            self.expect("docs/a.md", f"{sound}{text}\n", f"a.md:3: {said} is not there")
        for name in ("store/A.Gone", "tests/engine/test_a.py::test_gone"):
            self.expect("docs/a.md", f"{sound}`{name}`\n", f"a.md:3: there is no test {name}")

    def test_a_folder_that_the_table_of_layers_has_not(self) -> None:
        rows = "# A\n| `base` | a |\n| `wire`, `door`, `client` | b |\n"
        self.assertEqual(self.found("docs/architecture.md", rows + "| `store` | c |\n"), [])
        self.expect("docs/architecture.md", rows, "architecture.md:1: no row of a table begins with `store`")

    def test_a_decision_that_the_list_has_not(self) -> None:
        self.plant({"docs/decisions/0001-a.md": "# 0001: a\n"})
        self.assertEqual(self.found("docs/decisions/README.md", "# A\n- [0001](0001-a.md): a\n"), [])
        self.expect("docs/decisions/README.md", "# A\n", "README.md:1: no line leads to 0001-a.md")

    def test_the_picture_is_svg_with_every_folder(self) -> None:
        drawn = lint.drawn(lint.read_tree(self.root))
        texts = [e.text for e in xml.etree.ElementTree.fromstring(drawn).iter("{http://www.w3.org/2000/svg}text")]
        self.assertTrue({"base", "store", "door", "client"} <= set(texts), texts)

    def test_a_picture_of_other_includes(self) -> None:
        was = lint.drawn(lint.read_tree(self.root))
        self.assertEqual(self.found("docs/house.svg", was), [])
        self.plant({"src/door/door_test.cc": SPDX + '#include "base/clock.h"\n'})
        self.assertEqual(self.found("docs/house.svg", was), [])
        self.plant({"src/door/other.cc": SPDX + '#include "wire/protocol.h"\n'})
        self.expect("docs/house.svg", was, "the includes are others now")


if __name__ == "__main__":
    unittest.main()
