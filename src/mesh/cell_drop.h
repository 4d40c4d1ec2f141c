// SPDX-License-Identifier: Apache-2.0
// Drops of a cell: what ends for every member, as its callers say it and as etcd keeps it
// (docs/formats/cell.md).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cistern/key.h"
#include "cistern/status.h"
#include "store/requests.h"

namespace cistern::mesh {

struct DropLimits {
  static constexpr std::size_t kTenantBytes = 63;
  static constexpr std::size_t kKeysOfCall = 1u << 16;    // past it the caller says them in several calls
  static constexpr std::size_t kKeysOfDrop = 2'000;       // of one CellDrop; a call of more is cut up
  static constexpr std::size_t kBatchBytes = 128u << 10;  // of one value in etcd
  static constexpr std::size_t kDropsOfBatch = 4'096;
};

// A namespace as members name it to each other: their slot numbers and incarnations are their own.
struct SharedNamespace {
  std::string tenant;                     // 1 to kTenantBytes
  std::array<std::byte, 32> list_hash{};  // of its list of fields
  friend auto operator<=>(const SharedNamespace&, const SharedNamespace&) = default;
};

struct CellDrop {
  using What = store::DropWhat;
  What what = What::kNamespace;
  SharedNamespace name;
  std::vector<BlockKey> keys;      // of kKeys
  std::uint64_t conversation = 0;  // of kConversation

  bool is_end() const { return what == What::kConversation; }
  // kInvalid names the field, its value and its limit.
  Status Validate() const;
  friend bool operator==(const CellDrop&, const CellDrop&) = default;
};

// What one drop takes of a batch.
std::size_t EncodedBytes(const CellDrop& drop);
// A batch as a value of etcd, and back; none for bytes that are no batch of a version that this one knows.
std::string EncodeBatch(const std::vector<CellDrop>& drops);
std::optional<std::vector<CellDrop>> DecodeBatch(std::string_view value);

}  // namespace cistern::mesh
