// SPDX-License-Identifier: Apache-2.0
// The abstract memory of rule R16. The read and the publish protocol touch shared memory through Words and
// through nothing else, so that the same code runs on real memory (RealWords), on a memory that yields
// between any two words and delays streaming stores until a fence (the storm), and on relaxed atomics under
// TSan. Code on the hot path is a template over the body, which is final, so that calls are inlined; code
// that is not hot takes a Words&.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/fence.h"
#include "record/destinations.h"
#include "record/verified_copy.h"

namespace cistern::arena {

class Words {
 public:
  virtual ~Words() = default;

  // A shared word is aligned to 8 bytes and lock-free. Load has acquire, Store relaxed, StoreRelease
  // release order; LoadRelaxed is for payload words (seal, directory) that a generation guards.
  virtual std::uint64_t Load(const std::uint64_t* word) = 0;
  virtual std::uint64_t LoadRelaxed(const std::uint64_t* word) = 0;
  virtual void Store(std::uint64_t* word, std::uint64_t value) = 0;
  virtual void StoreRelease(std::uint64_t* word, std::uint64_t value) = 0;

  // Orders streaming stores before every later store of this thread (sfence). R2: once after the odd
  // generation, once by the thread that streamed, before the seal.
  virtual void StoreFence() = 0;
  // Orders earlier loads of this thread, of body bytes too, before later ones.
  virtual void LoadFence() = 0;

  // Copies `bytes` out of (into) shared memory, loading each byte once, and returns the CRC32C of what was
  // delivered, continued from `crc`. The destination may be written with streaming stores, so a fence must
  // follow: the caller's StoreFence(). `behind`: how many bytes that follow the source are copied next; a
  // hint. CopyOut's destination and CopyIn's source are private memory or a client's staging.
  virtual std::uint32_t CopyOut(void* to, const void* shared_from, std::size_t bytes, std::uint32_t crc,
                                std::size_t behind) = 0;
  virtual std::uint32_t CopyIn(void* shared_to, const void* from, std::size_t bytes, std::uint32_t crc,
                               std::size_t behind) = 0;
  // Asks for what a CopyOut of `bytes` will load first; does nothing else.
  virtual void Ask(const void*, std::size_t) {}
  // The CRC32C of shared bytes without a copy.
  virtual std::uint32_t Checksum(const void* shared_from, std::size_t bytes, std::uint32_t crc) = 0;
};

class RealWords final : public Words {
 public:
  explicit RealWords(const record::CopyKernels& kernels = record::ChosenKernels()) : kernels_(&kernels) {}

  std::uint64_t Load(const std::uint64_t* word) override {
    return Atomic(word).load(std::memory_order_acquire);
  }
  std::uint64_t LoadRelaxed(const std::uint64_t* word) override {
    return Atomic(word).load(std::memory_order_relaxed);
  }
  void Store(std::uint64_t* word, std::uint64_t value) override {
    std::atomic_ref(*word).store(value, std::memory_order_relaxed);
  }
  void StoreRelease(std::uint64_t* word, std::uint64_t value) override {
    std::atomic_ref(*word).store(value, std::memory_order_release);
  }
  void StoreFence() override { StreamingStoreFence(); }
  void LoadFence() override { EarlierLoadsFence(); }
  std::uint32_t CopyOut(void* to, const void* from, std::size_t bytes, std::uint32_t crc,
                        std::size_t behind) override {
    // Destinations are words that all threads write: not for kernels that have one way for both.
    auto* const stream = kernels_->copy_stream;
    auto* const again = kernels_->copy_again;
    auto* const copy = again != stream && destinations_.Again(to, bytes) ? again : stream;
    return copy(to, from, bytes, crc, behind);
  }
  void Ask(const void* from, std::size_t bytes) override { kernels_->ask(from, bytes); }
  std::uint32_t CopyIn(void* to, const void* from, std::size_t bytes, std::uint32_t crc,
                       std::size_t behind) override {
    return kernels_->copy_stream(to, from, bytes, crc, behind);
  }
  std::uint32_t Checksum(const void* from, std::size_t bytes, std::uint32_t crc) override {
    return kernels_->crc(from, bytes, crc);
  }

 private:
  // atomic_ref<const T> comes with C++26.
  static std::atomic_ref<std::uint64_t> Atomic(const std::uint64_t* word) {
    return std::atomic_ref(*const_cast<std::uint64_t*>(word));
  }
  static_assert(std::atomic_ref<std::uint64_t>::is_always_lock_free);

  const record::CopyKernels* kernels_;
  record::Destinations destinations_;
};

}  // namespace cistern::arena
