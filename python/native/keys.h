// SPDX-License-Identifier: Apache-2.0
// Keys and put ids between Python and C++.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "cistern/key.h"

namespace cistern::python {

namespace nb = nanobind;

// 1 to 32 bytes of a bytes object. Throws kInvalid, naming the argument.
BlockKey KeyFrom(nb::handle key, std::string_view name, std::ptrdiff_t at = -1);
nb::bytes BytesOf(const BlockKey& key);

using KeyList = std::shared_ptr<std::vector<BlockKey>>;

// What the last match of a chain answered.
struct RememberedMatch {
  std::uint32_t slot = 0;
  std::uint64_t incarnation = 0;
  const void* store = nullptr;
  std::int64_t at_ns = 0;
  std::uint32_t blocks = 0;
  nb::object answer;
};

// Keys converted once. Calls that are under way without the GIL hold the list as it was.
class Chain final {
 public:
  void Extend(nb::handle keys);
  void ExtendBuffer(nb::handle keys, std::size_t key_bytes);
  const KeyList& keys() const { return keys_; }
  std::optional<RememberedMatch> remembered;

 private:
  std::vector<BlockKey>& Own(std::size_t more);
  KeyList keys_ = std::make_shared<std::vector<BlockKey>>();
};

// Of a Chain (shared) or a sequence of bytes (converted).
KeyList KeysFrom(nb::handle keys);

// Parents of `keys`: `parents` where it is not None, else `parent` of the first and each key of the next.
std::vector<std::optional<BlockKey>> ParentsFrom(std::span<const BlockKey> keys, nb::handle parent,
                                                 nb::handle parents);

// 16 bytes each, not all zero. Throws kInvalid unless there are `count` (if given).
std::vector<PutId> PutIdsFrom(nb::handle ids, std::optional<std::size_t> count = std::nullopt);

void BindKeys(nb::module_& m);

}  // namespace cistern::python
