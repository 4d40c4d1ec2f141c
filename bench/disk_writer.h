// SPDX-License-Identifier: Apache-2.0
// Writes to a device as fast as it takes them, as long as this lives: what a put would have to bear beside
// any program that does so, on the same CPUs.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/fd.h"
#include "cistern/status.h"
#include "measure.h"

namespace cistern {

class DiskWriter final {
 public:
  // Writes a file of `bytes` through where it is not that long yet, then 1 MiB at a time anywhere in it,
  // `depth` at once, past the page cache. Writing when this returns.
  static Result<std::unique_ptr<DiskWriter>> Start(const std::string& path, std::uint64_t bytes, int depth);
  ~DiskWriter();

 private:
  explicit DiskWriter(Fd file) : file_(std::move(file)) {}
  bool WriteAt(std::uint64_t offset) const;

  const Fd file_;
  Buffer from_{1u << 20};
  std::atomic<std::uint64_t> writes_{0};
  std::atomic<bool> stop_{false};
  std::atomic<bool> failed_{false};
  std::vector<std::thread> threads_;
};

}  // namespace cistern
