// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "node/options.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  cistern::node::NodeOptions options;
  (void)cistern::node::ApplyConfigText(options, std::string_view(reinterpret_cast<const char*>(data), size),
                                       "fuzz");
  (void)cistern::node::ResolveNodeOptions(options);
  return 0;
}
