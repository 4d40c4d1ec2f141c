// SPDX-License-Identifier: Apache-2.0
#include "base/codec.h"

namespace cistern {

void Encoder::String(std::string_view text) {
  U32(static_cast<std::uint32_t>(text.size()));
  Append(text.data(), text.size());
}

void Encoder::Key(const BlockKey& key) {
  U8(key.length);
  Append(key.bytes.data(), key.bytes.size());
}

void Encoder::Append(const void* data, std::size_t bytes) {
  const auto* from = static_cast<const std::byte*>(data);
  out_.insert(out_.end(), from, from + bytes);
}

std::span<const std::byte> Decoder::Bytes(std::size_t count) {
  if (!ok_ || count > bytes_.size()) {
    ok_ = false;
    return {};
  }
  const std::span<const std::byte> taken = bytes_.first(count);
  bytes_ = bytes_.subspan(count);
  return taken;
}

std::string Decoder::String(std::size_t most_bytes) {
  const std::span<const std::byte> text = Bytes(Count(most_bytes));
  return std::string(reinterpret_cast<const char*>(text.data()), text.size());
}

BlockKey Decoder::Key() {
  const std::uint8_t length = U8();
  const std::span<const std::byte> bytes = Bytes(BlockKey::kMaxBytes);
  BlockKey key;
  if (length > BlockKey::kMaxBytes) ok_ = false;
  if (!ok_) return key;
  key.length = length;
  std::memcpy(key.bytes.data(), bytes.data(), length);
  return key;
}

std::uint32_t Decoder::Count(std::size_t most) {
  const std::uint32_t count = U32();
  if (count > most) ok_ = false;
  return ok_ ? count : 0;
}

}  // namespace cistern
