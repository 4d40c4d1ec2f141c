// SPDX-License-Identifier: Apache-2.0
// Memory that a device can be handed: aligned, and used again instead of given back. The pool is its
// buffers' home and outlives them.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <span>
#include <utility>
#include <vector>

#include "base/assert.h"
#include "base/limits.h"

namespace cistern::flash {

class BufferPool;

class Buffer {
 public:
  Buffer() = default;
  Buffer(Buffer&& other) noexcept
      : pool_(other.pool_),
        data_(std::exchange(other.data_, nullptr)),
        size_(std::exchange(other.size_, 0)) {}
  Buffer& operator=(Buffer&& other) noexcept {
    Buffer old(std::move(*this));
    pool_ = other.pool_;
    data_ = std::exchange(other.data_, nullptr);
    size_ = std::exchange(other.size_, 0);
    return *this;
  }
  inline ~Buffer();

  bool valid() const { return data_ != nullptr; }
  std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }
  std::span<std::byte> bytes() const { return {data_, size_}; }

 private:
  friend class BufferPool;
  BufferPool* pool_ = nullptr;
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

class BufferPool {
 public:
  static constexpr std::size_t kKeep = 16;
  static constexpr std::size_t kKeepBytes = 1u << 20;

  BufferPool() = default;
  BufferPool(const BufferPool&) = delete;
  BufferPool& operator=(const BufferPool&) = delete;
  ~BufferPool() {
    for (Kept& kept : kept_) std::free(kept.data);
  }

  // Of at least so many bytes, whatever they hold.
  Buffer Take(std::size_t bytes) {
    Buffer buffer;
    buffer.pool_ = this;
    for (std::size_t i = 0; i < kept_.size(); ++i) {
      if (kept_[i].size < bytes) continue;
      buffer.data_ = kept_[i].data;
      buffer.size_ = kept_[i].size;
      kept_[i] = kept_.back();
      kept_.pop_back();
      return buffer;
    }
    buffer.size_ = (bytes + kMaxAlignment - 1) / kMaxAlignment * kMaxAlignment;
    buffer.data_ = static_cast<std::byte*>(std::aligned_alloc(kMaxAlignment, buffer.size_));
    CISTERN_ASSERT(buffer.data_ != nullptr);
    return buffer;
  }

 private:
  friend class Buffer;
  struct Kept {
    std::byte* data;
    std::size_t size;
  };
  void GiveBack(std::byte* data, std::size_t size) {
    if (kept_.size() < kKeep && size <= kKeepBytes) {
      kept_.push_back({data, size});
    } else {
      std::free(data);
    }
  }
  std::vector<Kept> kept_;
};

inline Buffer::~Buffer() {
  if (data_ != nullptr) pool_->GiveBack(data_, size_);
}

}  // namespace cistern::flash
