// SPDX-License-Identifier: Apache-2.0
// The one encoding of all that is written or sent: integers little-endian, a string as 32 bits of length and
// its bytes, a list as 32 bits of count and its items. A format whose fields stand at fixed offsets uses
// LoadAt and StoreAt; one whose fields follow each other, Encoder and Decoder. Neither aligns anything.
// A checksum in such bytes: record/crc_field.h.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "cistern/key.h"

namespace cistern {

static_assert(std::endian::native == std::endian::little, "formats are little-endian, and so are we");

// ---- fields at fixed offsets -----------------------------------------------------------------------------

// The value at base[at]: an integer, or a struct whose layout is the format's. The caller knows that the
// bytes are there, and that nobody changes them meanwhile.
template <class T>
  requires std::is_trivially_copyable_v<T>
T LoadAt(const std::byte* base, std::size_t at) {
  T value;
  std::memcpy(&value, base + at, sizeof(value));
  return value;
}
template <class T>
  requires std::is_trivially_copyable_v<T>
void StoreAt(std::byte* base, std::size_t at, const T& value) {
  std::memcpy(base + at, &value, sizeof(value));
}

// A key takes BlockKey::kMaxBytes at `at`, zeros behind its end, and one byte of length elsewhere. What is
// loaded is a key only if IsKeyOrNone says so.
inline BlockKey LoadKeyAt(const std::byte* base, std::size_t at, std::size_t length_at) {
  BlockKey key;
  key.length = LoadAt<std::uint8_t>(base, length_at);
  std::memcpy(key.bytes.data(), base + at, BlockKey::kMaxBytes);
  return key;
}
inline void StoreKeyAt(std::byte* base, std::size_t at, std::size_t length_at, const BlockKey& key) {
  StoreAt(base, length_at, key.length);
  std::memcpy(base + at, key.bytes.data(), BlockKey::kMaxBytes);
}
// Sets `key` to the first `length` bytes of `from`, which has as many; length <= kMaxBytes. kMaxBytes are
// copied where they are there: a copy of as many as the length says is a run of small stores, on which
// whoever moves the key next waits.
inline void CopyKey(std::span<const std::byte> from, std::size_t length, BlockKey& key) {
  std::memcpy(key.bytes.data(), from.data(), std::min(from.size(), BlockKey::kMaxBytes));
  if (length < BlockKey::kMaxBytes) std::memset(key.bytes.data() + length, 0, BlockKey::kMaxBytes - length);
  key.length = static_cast<std::uint8_t>(length);
}
// Whether the length is in range and the bytes behind the key are zeros: that makes equality of keys equality
// of bytes.
inline bool IsKeyOrNone(const BlockKey& key) {
  if (key.length > BlockKey::kMaxBytes) return false;
  for (std::size_t i = key.length; i < BlockKey::kMaxBytes; ++i) {
    if (key.bytes[i] != 0) return false;
  }
  return true;
}

// ---- fields that follow each other -----------------------------------------------------------------------

// Appends to bytes that it borrows.
class Encoder final {
 public:
  explicit Encoder(std::vector<std::byte>& out) : out_(out) {}

  void U8(std::uint8_t value) { Append(&value, 1); }
  void U16(std::uint16_t value) { Append(&value, 2); }
  void U32(std::uint32_t value) { Append(&value, 4); }
  void U64(std::uint64_t value) { Append(&value, 8); }
  void Bytes(std::span<const std::byte> bytes) { Append(bytes.data(), bytes.size()); }
  void String(std::string_view text);
  // One byte of length, then BlockKey::kMaxBytes.
  void Key(const BlockKey& key);
  // The count, then what put_item appends for each item.
  template <class Items, class PutItem>
  void List(const Items& items, PutItem&& put_item) {
    U32(static_cast<std::uint32_t>(items.size()));
    for (const auto& item : items) put_item(item);
  }

 private:
  void Append(const void* data, std::size_t bytes);

  std::vector<std::byte>& out_;
};

// Takes off the front of bytes that it borrows what an Encoder appended. Bytes may say anything: it never
// reads past their end and allocates no more than the limits it is given. After the first value that is not
// there, or is over its limit, everything is zero or empty and ok() false, so it is enough to ask at the end.
class Decoder final {
 public:
  explicit Decoder(std::span<const std::byte> bytes) : bytes_(bytes) {}

  std::uint8_t U8() { return Take<std::uint8_t>(); }
  std::uint16_t U16() { return Take<std::uint16_t>(); }
  std::uint32_t U32() { return Take<std::uint32_t>(); }
  std::uint64_t U64() { return Take<std::uint64_t>(); }
  // The next `count` bytes; none where there are not so many.
  std::span<const std::byte> Bytes(std::size_t count);
  std::string String(std::size_t most_bytes);
  // A key, or none; what stands behind its end is left out.
  BlockKey Key();
  // A list's count, at most `most`.
  std::uint32_t Count(std::size_t most);
  // Replaces `items`: take_item fills in each.
  template <class T, class TakeItem>
  void List(std::vector<T>& items, std::size_t most, TakeItem&& take_item) {
    items.assign(Count(most), T());
    for (T& item : items) take_item(item);
  }

  // Whether everything so far was there.
  bool ok() const { return ok_; }
  // Whether everything was there and nothing is left.
  bool done() const { return ok_ && bytes_.empty(); }
  std::size_t left() const { return bytes_.size(); }

 private:
  template <class T>
  T Take() {
    const std::span<const std::byte> bytes = Bytes(sizeof(T));
    return bytes.empty() ? T{0} : LoadAt<T>(bytes.data(), 0);
  }

  std::span<const std::byte> bytes_;
  bool ok_ = true;
};

}  // namespace cistern
