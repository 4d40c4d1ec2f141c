// SPDX-License-Identifier: Apache-2.0
// Published traces, which are not in the tree: tests that want them look beside the checkout, in
// shared/traces, and are skipped where they are not there.
#pragma once

#include <filesystem>
#include <string_view>

namespace cistern::workload {

// Found from the program, which lies in build/PRESET/bin. A source's own path does not tell: an object from
// the compiler cache has that of the checkout which compiled it.
inline std::filesystem::path PublishedTrace(std::string_view name) {
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe");
  return (program.parent_path() / "../../../../shared/traces" / name).lexically_normal();
}

}  // namespace cistern::workload
