// SPDX-License-Identifier: Apache-2.0
#include "base/mapping_guard.h"

#include <errno.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>

namespace cistern {
namespace {

struct Guarded {
  std::atomic<bool> taken{false};
  std::atomic<std::uintptr_t> begin{0};  // 0: guards nothing now
  std::atomic<std::uintptr_t> end{0};
  std::atomic<int> protection{0};
  std::atomic<bool> lost{false};
};

// A signal handler has no object to be given, so there is one table a process.
constinit std::array<Guarded, MappingGuard::kMax> table;
constinit struct sigaction before{};

// Of the kernel's pages, which is no 4,096 on some AArch64 hosts; a handler may not ask.
constinit std::atomic<std::uintptr_t> page_bytes{4096};

// Only what a signal handler may call.
bool MakeZeros(std::uintptr_t at, const siginfo_t& info) {
  for (Guarded& guarded : table) {
    const std::uintptr_t begin = guarded.begin.load(std::memory_order_acquire);
    const std::uintptr_t end = guarded.end.load(std::memory_order_relaxed);
    if (begin == 0 || at < begin || at >= end) continue;
    const bool memory_failed = info.si_code == BUS_MCEERR_AR || info.si_code == BUS_MCEERR_AO;
    const std::uintptr_t unit =
        memory_failed ? std::uintptr_t{1} << info.si_addr_lsb : page_bytes.load(std::memory_order_relaxed);
    const std::uintptr_t first = at & ~(unit - 1);
    const std::uintptr_t bytes = memory_failed ? unit : end - first;
    guarded.lost.store(true, std::memory_order_release);
    const auto zeros = [&](std::uintptr_t size) {
      return ::mmap(reinterpret_cast<void*>(first), size, guarded.protection.load(std::memory_order_relaxed),
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) != MAP_FAILED;
    };
    // Where the system commits no memory that it does not have, the page alone: each further one comes here.
    return zeros(bytes) || zeros(unit);
  }
  return false;
}

void OnBusError(int signal, siginfo_t* info, void* context) {
  const int saved = errno;
  const bool made = MakeZeros(reinterpret_cast<std::uintptr_t>(info->si_addr), *info);
  errno = saved;
  if (made) return;
  if ((before.sa_flags & SA_SIGINFO) != 0) return before.sa_sigaction(signal, info, context);
  if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) return before.sa_handler(signal);
  // Comes again at once, and ends the process as it would have.
  struct sigaction end{};
  end.sa_handler = SIG_DFL;
  ::sigaction(SIGBUS, &end, nullptr);
}

void InstallHandler() {
  static std::once_flag once;
  std::call_once(once, [] {
    struct sigaction ours{};
    ours.sa_sigaction = OnBusError;
    ours.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    sigemptyset(&ours.sa_mask);
    page_bytes.store(static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE)), std::memory_order_relaxed);
    // Read first: the handler may run as soon as it stands.
    ::sigaction(SIGBUS, nullptr, &before);
    ::sigaction(SIGBUS, &ours, nullptr);
  });
}

}  // namespace

MappingGuard::MappingGuard(const Mapping& mapping, Access access) {
  InstallHandler();
  for (place_ = 0; place_ < kMax && table[place_].taken.exchange(true); ++place_) {
  }
  if (place_ == kNone) return;
  Guarded& guarded = table[place_];
  const auto begin = reinterpret_cast<std::uintptr_t>(mapping.data());
  guarded.lost.store(false, std::memory_order_relaxed);
  guarded.protection.store(access == Access::kRead ? PROT_READ : PROT_READ | PROT_WRITE,
                           std::memory_order_relaxed);
  const std::uintptr_t page = page_bytes.load(std::memory_order_relaxed);
  guarded.end.store((begin + mapping.size() + page - 1) & ~(page - 1), std::memory_order_relaxed);
  guarded.begin.store(begin, std::memory_order_release);
}

MappingGuard::~MappingGuard() {
  if (place_ == kNone) return;
  table[place_].begin.store(0, std::memory_order_release);
  table[place_].taken.store(false, std::memory_order_release);
}

bool MappingGuard::lost() const {
  return place_ != kNone && table[place_].lost.load(std::memory_order_acquire);
}

}  // namespace cistern
