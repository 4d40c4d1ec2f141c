// SPDX-License-Identifier: Apache-2.0
#include "base/log_limiter.h"

#include <algorithm>
#include <utility>

namespace cistern {
namespace {

constexpr std::int64_t kNsPerLine = 1'000'000'000;

// A file's name is one object in each translation unit, and of headers it does not matter.
std::uint64_t Number(const std::source_location& site) {
  return reinterpret_cast<std::uintptr_t>(site.file_name()) * 31 + site.line();
}

}  // namespace

std::optional<std::uint64_t> LogLimiter::Admit(const std::source_location& where, Instant now) {
  const std::lock_guard lock(mutex_);
  const auto [found, is_new] = sites_.try_emplace(Number(where));
  Site& site = found->second;
  if (is_new) site.last = now;
  const std::int64_t lines = std::max<std::int64_t>(now.NsSince(site.last), 0) / kNsPerLine;
  if (lines > 0) {
    site.last = now;
    site.room = static_cast<std::uint32_t>(std::min<std::int64_t>(site.room + lines, kAtOnce));
  }
  if (site.room == 0) {
    ++site.left_out;
    return std::nullopt;
  }
  if (site.room-- == kAtOnce) site.last = now;
  return std::exchange(site.left_out, 0);
}

}  // namespace cistern
