// SPDX-License-Identifier: Apache-2.0
// Room on a disk for the flash of a demo's nodes.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <string>
#include <string_view>

#include "base/fd.h"
#include "base/format.h"
#include "base/units.h"
#include "cistern/status.h"
#include "scratch_directory.h"

namespace cistern {

// Where a temporary file on flash may lie: a file system on a disk, with O_DIRECT and room.
inline constexpr std::string_view kFlashDirectories[] = {"/var/tmp", ".", "/tmp"};

// A directory in `parent`, if flash of so many bytes can lie there.
inline Result<ScratchDirectory> MakeFlashIn(const std::string& parent, std::uint64_t bytes) {
  Result<ScratchDirectory> scratch = ScratchDirectory::Make(parent, "demo");
  if (!scratch) return scratch;
  const std::string path = scratch->path();
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

// In `parent`, or where that is empty in the first of kFlashDirectories that will do.
inline Result<ScratchDirectory> MakeFlash(const std::string& parent_dir, std::uint64_t bytes) {
  if (!parent_dir.empty()) return MakeFlashIn(parent_dir, bytes);
  std::string why;
  for (const std::string_view parent : kFlashDirectories) {
    Result<ScratchDirectory> made = MakeFlashIn(std::string(parent), bytes);
    if (made) return made;
    why += Text(why.empty() ? "" : "; ", made.error().message());
  }
  return Error(Code::kInvalid, Text("no directory for flash: ", why, "; name one with --flash-dir"));
}

}  // namespace cistern
