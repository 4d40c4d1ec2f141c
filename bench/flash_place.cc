// SPDX-License-Identifier: Apache-2.0
#include "flash_place.h"

#include <chrono>
#include <filesystem>
#include <thread>

#include "bench_node.h"

namespace cistern {

std::string FlashFileIn(const std::string& directory) {
  std::error_code ignored;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(directory, ignored)) {
    if (entry.is_regular_file(ignored) && entry.path().filename() == "flash") return entry.path().string();
  }
  return {};
}

Status AwaitWritten(Store& store) {
  for (double before = -1;;) {
    const auto now = StatusNumber(store, {"flash", "written_bytes"});
    if (!now) return now.error();
    if (*now == before) return Status();
    before = *now;
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  }
}

Result<FilledBlocks> FillDown(Store& store, std::size_t count, std::uint64_t block_bytes,
                              std::size_t chain_blocks) {
  const std::size_t behind = (64u << 20) / block_bytes;
  return Fill(store, count, block_bytes, chain_blocks, [&](std::size_t filled) -> Status {
    for (;;) {
      const auto written = StatusNumber(store, {"store", "written_down"});
      if (!written) return written.error();
      if (*written + static_cast<double>(behind) >= static_cast<double>(filled)) return Status();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  });
}

}  // namespace cistern
