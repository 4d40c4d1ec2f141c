// SPDX-License-Identifier: Apache-2.0
// Shared memory made of atomic words alone, for the protocol between threads of one process under TSan, which
// knows neither fences nor streaming stores. Each load has acquire and each store release order, so what the
// fences do elsewhere the accesses do here. Slow, and only for tests.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "arena/words.h"
#include "record/verified_copy.h"

namespace cistern::arena {

class RelaxedWords final : public Words {
 public:
  std::uint64_t Load(const std::uint64_t* word) override { return Get(word); }
  std::uint64_t LoadRelaxed(const std::uint64_t* word) override { return Get(word); }
  void Store(std::uint64_t* word, std::uint64_t value) override { Set(word, value); }
  void StoreRelease(std::uint64_t* word, std::uint64_t value) override { Set(word, value); }
  void StoreFence() override {}
  void LoadFence() override {}

  std::uint32_t CopyOut(void* to, const void* from, std::size_t bytes, std::uint32_t crc,
                        std::size_t) override {
    auto* target = static_cast<std::byte*>(to);
    auto* source = static_cast<const std::byte*>(from);
    for (std::size_t at = 0; at < bytes; ++at) target[at] = GetByte(source + at);
    return record::Crc32c(to, bytes, crc);
  }
  std::uint32_t CopyIn(void* to, const void* from, std::size_t bytes, std::uint32_t crc,
                       std::size_t) override {
    auto* target = static_cast<std::byte*>(to);
    auto* source = static_cast<const std::byte*>(from);
    for (std::size_t at = 0; at < bytes; ++at) SetByte(target + at, source[at]);
    return record::Crc32c(from, bytes, crc);
  }
  std::uint32_t Checksum(const void* from, std::size_t bytes, std::uint32_t crc) override {
    auto* source = static_cast<const std::byte*>(from);
    for (std::size_t at = 0; at < bytes; ++at) {
      std::byte byte = GetByte(source + at);
      crc = record::Crc32c(&byte, 1, crc);
    }
    return crc;
  }

 private:
  static std::uint64_t Get(const std::uint64_t* word) {
    return std::atomic_ref(*const_cast<std::uint64_t*>(word)).load(std::memory_order_acquire);
  }
  static void Set(std::uint64_t* word, std::uint64_t value) {
    std::atomic_ref(*word).store(value, std::memory_order_release);
  }
  static std::byte GetByte(const std::byte* byte) {
    return std::atomic_ref(*const_cast<std::byte*>(byte)).load(std::memory_order_acquire);
  }
  static void SetByte(std::byte* byte, std::byte value) {
    std::atomic_ref(*byte).store(value, std::memory_order_release);
  }
};

}  // namespace cistern::arena
