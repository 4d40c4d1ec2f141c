// SPDX-License-Identifier: Apache-2.0
// What a stranger sends over the socket, and the namespace list that an attach carries: an error or a value.
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/assert.h"
#include "door/handshake.h"
#include "door/spec_wire.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace cistern;
  std::span<const std::byte> bytes = std::as_bytes(std::span(data, size));
  Result<door::HelloText> hello = door::ReadHello(bytes);
  if (hello) CISTERN_ASSERT(hello->tenant.size() < sizeof(door::Hello::tenant));
  (void)door::ReadMoreStaging(bytes);
  Result<NamespaceSpec> spec = door::DecodeSpec(bytes);
  if (!spec) return 0;
  // What was read is written and read again as the same.
  Result<std::string> wire = door::EncodeSpec(*spec);
  CISTERN_ASSERT(wire.has_value());
  Result<NamespaceSpec> again = door::DecodeSpec(std::as_bytes(std::span(*wire)));
  CISTERN_ASSERT(again.has_value() && again->fields == spec->fields &&
                 again->groups.size() == spec->groups.size());
  return 0;
}
