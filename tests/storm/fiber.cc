// SPDX-License-Identifier: Apache-2.0
#include "fiber.h"

#include <sys/mman.h>

#include <cstdint>
#include <utility>

#include "base/assert.h"

// Weak: they exist in a program that AddressSanitizer was linked into, and are null in any other.
extern "C" {
__attribute__((weak)) void __sanitizer_start_switch_fiber(void** save, const void* bottom, std::size_t size);
__attribute__((weak)) void __sanitizer_finish_switch_fiber(void* fake, const void** bottom,
                                                           std::size_t* size);
}

namespace cistern::storm {
namespace {

constexpr std::size_t kGuardBytes = 4096;

void StartSwitch(void** save, const void* bottom, std::size_t size) {
  if (__sanitizer_start_switch_fiber != nullptr) __sanitizer_start_switch_fiber(save, bottom, size);
}
void FinishSwitch(void* fake, const void** bottom, std::size_t* size) {
  if (__sanitizer_finish_switch_fiber != nullptr) __sanitizer_finish_switch_fiber(fake, bottom, size);
}

}  // namespace

Fiber::Fiber(std::function<void()> body) : body_(std::move(body)) {
  void* memory = mmap(nullptr, kStackBytes + kGuardBytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  CISTERN_ASSERT(memory != MAP_FAILED);
  CISTERN_ASSERT(mprotect(memory, kGuardBytes, PROT_NONE) == 0);
  stack_ = static_cast<std::byte*>(memory);
  getcontext(&inside_);
  inside_.uc_stack.ss_sp = stack_ + kGuardBytes;
  inside_.uc_stack.ss_size = kStackBytes;
  inside_.uc_link = nullptr;
  auto self = reinterpret_cast<std::uintptr_t>(this);
  makecontext(&inside_, reinterpret_cast<void (*)()>(&Fiber::Enter), 2, static_cast<unsigned>(self),
              static_cast<unsigned>(std::uint64_t{self} >> 32));
}

Fiber::~Fiber() {
  CISTERN_ASSERT(ended_ || !began_);
  munmap(stack_, kStackBytes + kGuardBytes);
}

void Fiber::Enter(unsigned low, unsigned high) {
  reinterpret_cast<Fiber*>(std::uint64_t{high} << 32 | low)->Main();
}

void Fiber::Main() {
  FinishSwitch(nullptr, &outside_bottom_, &outside_bytes_);
  body_();
  body_ = nullptr;
  ended_ = true;
  StartSwitch(nullptr, outside_bottom_, outside_bytes_);
  setcontext(&outside_);
}

void Fiber::Resume() {
  CISTERN_ASSERT(!ended_);
  began_ = true;
  StartSwitch(&fake_outside_, inside_.uc_stack.ss_sp, kStackBytes);
  swapcontext(&outside_, &inside_);
  FinishSwitch(fake_outside_, nullptr, nullptr);
}

void Fiber::Suspend() {
  StartSwitch(&fake_inside_, outside_bottom_, outside_bytes_);
  swapcontext(&inside_, &outside_);
  FinishSwitch(fake_inside_, &outside_bottom_, &outside_bytes_);
}

}  // namespace cistern::storm
