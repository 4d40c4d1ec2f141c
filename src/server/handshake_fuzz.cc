// SPDX-License-Identifier: Apache-2.0
// What a stranger sends over the socket, and the namespace list that an attach carries: an error or a value.
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/assert.h"
#include "server/handshake.h"
#include "wire/spec_wire.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace cistern;
  using namespace cistern::server;
  std::span<const std::byte> bytes = std::as_bytes(std::span(data, size));
  Result<HelloText> hello = ReadHello(bytes);
  if (hello) CISTERN_ASSERT(hello->tenant.size() < sizeof(wire::Hello::tenant));
  (void)ReadSessionMessage(bytes);
  Result<NamespaceSpec> spec = wire::DecodeSpec(bytes);
  if (!spec) return 0;
  // What was read is written and read again as the same.
  Result<std::vector<std::byte>> wire = wire::EncodeSpec(*spec);
  CISTERN_ASSERT(wire.has_value());
  Result<NamespaceSpec> again = wire::DecodeSpec(*wire);
  CISTERN_ASSERT(again.has_value() && again->fields == spec->fields &&
                 again->groups.size() == spec->groups.size());
  return 0;
}
