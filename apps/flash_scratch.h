// SPDX-License-Identifier: Apache-2.0
// Room on a disk for the flash of a demo's nodes.
#pragma once

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>

#include "base/fd.h"
#include "base/format.h"
#include "base/units.h"
#include "cistern/status.h"

namespace cistern {

// Where a temporary file on flash may lie: a file system on a disk, with O_DIRECT and room.
inline constexpr std::string_view kFlashDirectories[] = {"/var/tmp", ".", "/tmp"};

// A directory for flash, gone with the demo.
class FlashScratch {
 public:
  FlashScratch() = default;
  FlashScratch(FlashScratch&& other) noexcept : path_(std::exchange(other.path_, {})) {}
  FlashScratch& operator=(FlashScratch&& other) noexcept {
    std::swap(path_, other.path_);
    return *this;
  }
  ~FlashScratch() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }

  // In `parent`, if flash of so many bytes can lie there.
  static Result<FlashScratch> Make(const std::string& parent, std::uint64_t bytes) {
    FlashScratch scratch;
    std::string path = parent + "/cistern-demo-XXXXXX";
    if (mkdtemp(path.data()) == nullptr) {
      return Error(Code::kInvalid, Text(parent, ": no directory can be made there: ", ErrnoText(errno)));
    }
    scratch.path_ = path;
    const Fd direct(open((path + "/probe").c_str(), O_RDWR | O_CREAT | O_DIRECT | O_CLOEXEC, 0600));
    if (!direct.valid()) {
      return Error(Code::kInvalid, Text(parent, ": its file system has no O_DIRECT: ", ErrnoText(errno)));
    }
    std::error_code error;
    const std::filesystem::space_info space = std::filesystem::space(path, error);
    if (error || space.available < bytes + bytes / 4) {
      return Error(Code::kInvalid,
                   Text(parent, ": there is no room for ", RoughSizeText(bytes), " and a quarter"));
    }
    unlink((path + "/probe").c_str());
    return scratch;
  }

 private:
  std::string path_;
};

// In `parent`, or where that is empty in the first of kFlashDirectories that will do.
inline Result<FlashScratch> MakeFlash(const std::string& parent_dir, std::uint64_t bytes) {
  if (!parent_dir.empty()) return FlashScratch::Make(parent_dir, bytes);
  std::string why;
  for (const std::string_view parent : kFlashDirectories) {
    Result<FlashScratch> made = FlashScratch::Make(std::string(parent), bytes);
    if (made) return made;
    why += Text(why.empty() ? "" : "; ", made.error().message());
  }
  return Error(Code::kInvalid, Text("no directory for flash: ", why, "; name one with --flash-dir"));
}

}  // namespace cistern
