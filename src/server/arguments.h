// SPDX-License-Identifier: Apache-2.0
// Arguments as they come out of a session's area: each byte is loaded once, into memory of the node's own,
// and only that copy is looked at (R13). Long lists are taken a slice a step.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/codec.h"
#include "base/format.h"
#include "cistern/key.h"
#include "cistern/status.h"
#include "wire/protocol.h"

namespace cistern::server {

// R16: of arguments and replies, in one step of the core.
inline constexpr std::size_t kItemsPerStep = 512;
inline constexpr std::size_t kSliceBytes = 32u << 10;

// The rest of a call's arguments. Borrows the session's area.
class Arguments final {
 public:
  // `bytes` lie in the session's area, which was checked when the entry was taken.
  explicit Arguments(std::span<const std::byte> bytes) : bytes_(bytes) {}

  std::size_t left() const { return bytes_.size(); }

  // Copies the next bytes; to.size() <= left().
  void Take(std::span<std::byte> to) {
    if (to.empty()) return;
    std::memcpy(to.data(), bytes_.data(), to.size());
    asm volatile("" ::: "memory");
    bytes_ = bytes_.subspan(to.size());
  }
  // The next bytes as a text, `most` or what is left.
  std::string TakeText(std::size_t most = SIZE_MAX) {
    std::string text(std::min(most, left()), '\0');
    Take(std::as_writable_bytes(std::span(text)));
    return text;
  }
  // Copies bytes that lie anywhere in the rest; offset + to.size() <= left().
  void CopyAt(std::size_t offset, std::span<std::byte> to) const {
    if (to.empty()) return;
    std::memcpy(to.data(), bytes_.data() + offset, to.size());
    asm volatile("" ::: "memory");
  }

  // kInvalid unless the rest is a list of at most `limit` whole items; their count.
  template <class Item>
  Result<std::size_t> Count(std::string_view what, std::size_t limit) const {
    if (bytes_.size() % sizeof(Item) != 0)
      return Error(Code::kInvalid, Text(bytes_.size(), " bytes of arguments are no list of ", what,
                                        ", which have ", sizeof(Item), " bytes each"));
    std::size_t count = bytes_.size() / sizeof(Item);
    if (count > limit)
      return Error(Code::kInvalid,
                   Text(count, " ", what, " in one call, the limit is ", limit, ": split it"));
    return count;
  }

  // The next items, at most kItemsPerStep and kSliceBytes of them.
  template <class Item>
    requires std::is_trivially_copyable_v<Item>
  void TakeSlice(std::vector<Item>& slice) {
    slice.resize(std::min({bytes_.size() / sizeof(Item), kItemsPerStep, kSliceBytes / sizeof(Item)}));
    Take(std::as_writable_bytes(std::span(slice)));
  }

 private:
  std::span<const std::byte> bytes_;
};

// Into `key`, which has no bytes past its length whatever the item has. kInvalid for a length that no key
// has.
inline Status TakeKey(const wire::KeyItem& item, BlockKey& key) {
  if (item.size < BlockKey::kMinBytes || item.size > BlockKey::kMaxBytes)
    return Status(Code::kInvalid, Text("a key of ", item.size, " bytes: keys have ", BlockKey::kMinBytes,
                                       " to ", BlockKey::kMaxBytes));
  CopyKey(std::as_bytes(std::span(item.bytes)), item.size, key);
  return Status();
}

// `none_allowed`: length 0 is no key.
inline Result<BlockKey> KeyOf(const wire::KeyItem& item, bool none_allowed = false) {
  BlockKey key;
  if (item.size == 0 && none_allowed) return key;
  if (Status status = TakeKey(item, key); !status.ok()) return std::unexpected(std::move(status));
  return key;
}

}  // namespace cistern::server
