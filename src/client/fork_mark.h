// SPDX-License-Identifier: Apache-2.0
// Whether this is still the process that connected (R15).
#pragma once

#include <cstdint>
#include <utility>

#include "cistern/status.h"

namespace cistern::client {

// A page that the kernel gives a forked child as zeros: one load tells which side of a fork this is.
class ForkMark final {
 public:
  static Result<ForkMark> Make();
  ForkMark(ForkMark&& other) noexcept : page_(std::exchange(other.page_, nullptr)) {}
  ForkMark& operator=(ForkMark&&) = delete;
  ~ForkMark();

  bool forked() const { return *page_ == 0; }

 private:
  explicit ForkMark(const volatile std::uint64_t* page) : page_(page) {}
  const volatile std::uint64_t* page_;
};

}  // namespace cistern::client
