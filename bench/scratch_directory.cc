// SPDX-License-Identifier: Apache-2.0
#include "scratch_directory.h"

#include <stdlib.h>

#include <cerrno>
#include <chrono>
#include <filesystem>
#include <thread>

#include "base/fd.h"
#include "base/format.h"

namespace cistern {

Result<ScratchDirectory> ScratchDirectory::Make(const std::string& parent, std::string_view whose) {
  std::string path = Text(parent, "/cistern-", whose, "-XXXXXX");
  if (mkdtemp(path.data()) == nullptr) {
    return Error(Code::kInvalid, Text(parent, ": no directory can be made there (", ErrnoText(errno),
                                      "); name one that exists and is writable"));
  }
  ScratchDirectory made;
  made.path_ = std::move(path);
  return made;
}

// A node that is being killed may still make a file.
ScratchDirectory::~ScratchDirectory() {
  constexpr int kTries = 200;
  std::error_code error;
  for (int i = 0; i < kTries && !path_.empty(); ++i) {
    std::filesystem::remove_all(path_, error);
    if (!std::filesystem::exists(path_, error)) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

}  // namespace cistern
