// SPDX-License-Identifier: Apache-2.0
// Storage whose growth never moves its items and never takes long: a vector that doubles would copy a
// million nodes in one step of the core. All but the first few items lie in huge pages: a restart that makes
// a million nodes takes most of its time for the faults of small ones, and who looks 64 blocks up after a
// pause waits for the pages' translations longer than for the blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <vector>

#include "base/assert.h"
#include "base/huge_pages.h"

namespace cistern::catalog {

inline constexpr std::uint32_t kNoId = 0xffff'ffff;

// Items by dense ids; a removed id is given out again. `T` has a `std::uint32_t next_free`, which is the
// slab's while the item is free. Items keep their address.
template <class T>
class Slab final {
 public:
  Slab() = default;
  ~Slab() {
    for (std::uint32_t id = 0; id < end_; ++id) (*this)[id].~T();
  }

  // The item is default-constructed.
  std::uint32_t Add() {
    std::uint32_t id = free_;
    if (id != kNoId) {
      free_ = (*this)[id].next_free;
      // Nobody has looked at the next one since it was freed.
      if (free_ != kNoId) __builtin_prefetch(&(*this)[free_], 1);
      (*this)[id] = T{};
    } else {
      CISTERN_ASSERT(end_ < kNoId);
      id = end_++;
      if (id / kChunk == chunks_.size()) Grow();
      new (&chunks_[id / kChunk][id % kChunk]) T{};
    }
    ++size_;
    return id;
  }
  void Remove(std::uint32_t id) {
    (*this)[id] = T{};
    (*this)[id].next_free = free_;
    free_ = id;
    --size_;
  }

  T& operator[](std::uint32_t id) { return chunks_[id / kChunk][id % kChunk]; }
  const T& operator[](std::uint32_t id) const { return chunks_[id / kChunk][id % kChunk]; }
  std::uint32_t size() const { return size_; }
  // One past the largest id given out so far.
  std::uint32_t end() const { return end_; }

 private:
  static constexpr std::uint32_t kChunk = 1024;
  static constexpr std::size_t kChunkBytes = kChunk * sizeof(T);
  static constexpr std::size_t kLargeBytes = 2 * kHugePageBytes;  // of many chunks
  static_assert(kChunkBytes <= kHugePageBytes);

  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };

  void Grow() {
    const bool small = chunks_.empty();
    const std::size_t align = small ? alignof(std::max_align_t) : kHugePageBytes;
    const std::size_t bytes = small ? kChunkBytes : kLargeBytes;
    void* memory = std::aligned_alloc(align, bytes);
    CISTERN_ASSERT(memory != nullptr);
    if (!small) AskForHugePages(memory, bytes);
    memory_.emplace_back(memory);
    for (std::size_t at = 0; at + kChunkBytes <= bytes; at += kChunkBytes) {
      chunks_.push_back(reinterpret_cast<T*>(static_cast<std::byte*>(memory) + at));
    }
  }

  std::vector<std::unique_ptr<void, Free>> memory_;
  std::vector<T*> chunks_;
  std::uint32_t free_ = kNoId;
  std::uint32_t end_ = 0;
  std::uint32_t size_ = 0;
};

// A zeroed array of `size` items that takes memory where it is first written: for tables as large as an
// arena could ever need. The bytes of a default-constructed `T` are zero.
template <class T>
class LazyArray final {
 public:
  explicit LazyArray(std::size_t size)
      : data_(static_cast<T*>(std::calloc(size > 0 ? size : 1, sizeof(T)))), size_(size) {
    CISTERN_ASSERT(data_ != nullptr);
    if (size * sizeof(T) >= kLargeBytes) AskForHugePages(data_.get(), size * sizeof(T));
  }

  T& operator[](std::size_t at) { return data_.get()[at]; }
  const T& operator[](std::size_t at) const { return data_.get()[at]; }
  std::size_t size() const { return size_; }

 private:
  static_assert(std::is_trivially_copyable_v<T> && std::is_trivially_destructible_v<T>);
  static constexpr std::size_t kLargeBytes = 4 * kHugePageBytes;
  struct Free {
    void operator()(T* data) const { std::free(data); }
  };
  std::unique_ptr<T, Free> data_;
  std::size_t size_;
};

}  // namespace cistern::catalog
