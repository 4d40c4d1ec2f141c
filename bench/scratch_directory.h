// SPDX-License-Identifier: Apache-2.0
// A directory that is gone with what made it.
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "cistern/status.h"

namespace cistern {

// Removed with the object, and all that is in it.
class ScratchDirectory final {
 public:
  ScratchDirectory() = default;  // none
  // cistern-WHOSE-XXXXXX in `parent`. kInvalid where none can be made there.
  static Result<ScratchDirectory> Make(const std::string& parent, std::string_view whose);
  ScratchDirectory(ScratchDirectory&& other) noexcept : path_(std::exchange(other.path_, {})) {}
  ScratchDirectory& operator=(ScratchDirectory&& other) noexcept {
    std::swap(path_, other.path_);
    return *this;
  }
  ~ScratchDirectory();

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace cistern
