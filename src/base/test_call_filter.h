// SPDX-License-Identifier: Apache-2.0
// System calls that a test has refused, as a host may that lacks what they ask for. In a death test's child:
// no process gets them back.
#pragma once

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/assert.h"

namespace cistern {

// What a BPF_LD | BPF_W | BPF_ABS loads: the call's number, and the low half of an argument, from 0 on.
inline constexpr std::uint32_t kCallNumber = offsetof(seccomp_data, nr);
constexpr std::uint32_t CallArgument(std::size_t i) {
  return static_cast<std::uint32_t>(offsetof(seccomp_data, args) + i * sizeof(std::uint64_t));
}

// From then on each call of this thread, and of those that it starts, goes through these steps (seccomp(2)).
inline void FilterCalls(std::span<sock_filter> steps) {
  sock_fprog program{.len = static_cast<unsigned short>(steps.size()), .filter = steps.data()};
  CISTERN_ASSERT(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
  CISTERN_ASSERT(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
}

}  // namespace cistern
