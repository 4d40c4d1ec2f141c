// SPDX-License-Identifier: Apache-2.0
// A directory of a test's own, which goes with it, or with the next `./dev test` where it is killed.
#pragma once

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>

#include "base/assert.h"

namespace cistern {

class TestDirectory final {
 public:
  // kMemory: shared memory where the host has it. kDisk: where the tests run, because the directory of
  // temporary files may be in memory, without O_DIRECT.
  enum class On { kMemory, kDisk };
  explicit TestDirectory(On on = On::kMemory) {
    std::filesystem::path parent = on == On::kDisk ? std::filesystem::current_path() : "/dev/shm";
    if (!std::filesystem::is_directory(parent)) parent = std::filesystem::temp_directory_path();
    path_ = (parent / ("cistern-test-" + std::to_string(::getpid()) + "-XXXXXX")).string();
    CISTERN_ASSERT(::mkdtemp(path_.data()) != nullptr);
  }
  ~TestDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TestDirectory(const TestDirectory&) = delete;
  TestDirectory& operator=(const TestDirectory&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace cistern
